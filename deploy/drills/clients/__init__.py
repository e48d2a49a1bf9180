"""Clients that drills work with: raw requests, the stock client, and naive programs as lessons."""
