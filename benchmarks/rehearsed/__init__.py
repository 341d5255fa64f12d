"""The rehearsal of H-GLDv2: a made release, servers in the shape of the real ones, the chain of commands, measuring."""
