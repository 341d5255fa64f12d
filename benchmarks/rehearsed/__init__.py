"""The rehearsal of H-GLDv2: a made release, servers in the shape of the real ones, and the chain of commands over them."""
