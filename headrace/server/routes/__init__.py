"""What each route answers, and the table of routes."""
