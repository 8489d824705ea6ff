"""The only access to AWS clients: boto3 with the settings of the process."""
