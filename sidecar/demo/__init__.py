"""The demo: recorded gateway requests through real processes, and what must come out of them.

`requests.rec` holds frames as a gateway's socket sent them (tokenspeed-smg, with the tiny configs in
`models/`), and three that were made from them: a request that nobody has padded, one cut short, and a
piece without a rid. Its egress records are answers to compare with: what the gateway itself computes
for the same prompt where it is allowed to.
"""
