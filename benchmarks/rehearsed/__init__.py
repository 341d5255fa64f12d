"""The rehearsal of H-GLDv2: synthetic release, fake servers, chain of commands, measurements."""
