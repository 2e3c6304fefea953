//! The names that a program usually needs: `use remora::prelude::*`.

pub use remora_nic::Access;
pub use remora_nic::queue::Completion;

pub use crate::chain::{AsyncChainClient, Chain, ChainClient};
pub use crate::channel::CompletionChannel;
pub use crate::completion::CompletionQueue;
pub use crate::connection::{Connection, Handshake, IncomingConnection, Listener};
pub use crate::device::{Device, DeviceOptions};
pub use crate::kernel::{AsyncKernelClient, Context, Deployment, KernelClient};
pub use crate::options::{ConnectionParams, Peer, QueuePairOptions};
pub use crate::queue_pair::QueuePair;
pub use crate::region::{MemoryRegion, ProtectionDomain};
pub use crate::remote::Remote;
pub use crate::request::{Request, RequestError};
pub use crate::slice::MemorySlice;
