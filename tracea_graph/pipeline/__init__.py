"""Pipeline of one optimization: plan, assemble, build, verify, time and publish."""
