"""What tests share: clusters, servers, fakes of the outside world, waits; no test."""
