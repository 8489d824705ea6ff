"""Commands about accounts: who may sign in, who is signed in here, and what they did."""
