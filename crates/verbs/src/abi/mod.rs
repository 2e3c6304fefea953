//! The C structs, constants and function types of rdma-core's headers.
