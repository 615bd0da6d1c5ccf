"""What is written down of requests for operators: a log, traces."""
