//! What a node is started with, and why one does not start.

use std::io;
use std::path::PathBuf;

use remora::RegisterError;
use remora::nic::CreateError;
use remora::nic::cm::ListenError;
use thiserror::Error;

use super::protocol::Token;
use super::spec::RegionSpec;
use super::{DEFAULT_PORT, REGIONS_MAX};

/// What to serve, and to whom.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Port of RDMA CM's TCP port space.
    pub port: u16,
    /// What a client must show. Without one, everybody who reaches the device is admitted.
    pub token: Option<Token>,
    /// The regions.
    pub regions: Vec<RegionSpec>,
    /// Each of these permits to load kernels.
    pub permits: Vec<Token>,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions { port: DEFAULT_PORT, token: None, regions: Vec::new(), permits: Vec::new() }
    }
}

/// Why a node did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Nothing to serve.
    #[error("nothing to serve: give it a region, as in --region data=FILE or --region scratch=64M")]
    NoRegions,
    /// Too much to serve.
    #[error("{0} regions are more than the {REGIONS_MAX} that a node serves")]
    TooManyRegions(usize),
    /// Two regions of one name.
    #[error("two regions are called `{0}`: clients could not tell them apart")]
    Twice(String),
    /// A file that cannot be opened.
    #[error("cannot open {path} for region `{name}`: {source}")]
    Open {
        /// The region.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("cannot serve {path} as region `{name}`: it is no regular file")]
    NoFile {
        /// The region.
        name: String,
        /// The path.
        path: PathBuf,
    },
    /// A file without bytes.
    #[error("cannot serve {path} as region `{name}`: the file is empty")]
    EmptyFile {
        /// The region.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// The card or the system has no room.
    #[error("cannot make region `{name}`: {source}")]
    Register {
        /// The region.
        name: String,
        /// Why.
        source: RegisterError,
    },
    /// The card has no more of something.
    #[error(transparent)]
    Card(#[from] CreateError),
    /// The port is taken.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// The port.
        port: u16,
        /// Why.
        source: ListenError,
    },
    /// The system has no more descriptors.
    #[error("cannot set up the node: {0}")]
    System(#[from] io::Error),
}
