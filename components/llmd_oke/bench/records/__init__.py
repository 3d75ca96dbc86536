"""What is known of requests that have ended, and what they come to."""
