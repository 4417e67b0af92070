"""Models of servers whose limit their clients don't know, in virtual time, and what finds it: AdaptiveRate, and simpler ways."""
