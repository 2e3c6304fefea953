//! The RDMA communication manager.

pub mod mad;
pub mod message;
pub mod service;
