"""What is asked, and when: prompts, lengths, arrivals, recorded traces."""
