"""Finding a limit that is not known: AdaptiveRate and its rivals against models of servers, in virtual time."""
