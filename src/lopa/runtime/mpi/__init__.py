"""A session over the ranks of an MPI job."""
