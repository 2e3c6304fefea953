//! The options of a node, and the errors that keep it from starting.

use std::io;
use std::path::PathBuf;

use remora::RegisterError;
use remora::connection::token::Token;
use remora::kernel::Loader;
use remora::nic::CreateError;
use remora::nic::cm::ListenError;
use thiserror::Error;

use super::spec::RegionSpec;
use super::{DEFAULT_PORT, REGIONS_MAX};

/// The options of a node: what it serves, and to whom.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Port of RDMA CM's TCP port space.
    pub port: u16,
    /// The token that a client must show. Without one, every client that reaches the device is
    /// admitted.
    pub token: Option<Token>,
    /// The regions.
    pub regions: Vec<RegionSpec>,
    /// Tokens, each of which permits loading kernels.
    pub permits: Vec<Token>,
    /// Compiles the modules of clients. `None`: they are refused.
    pub loader: Option<Loader>,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            port: DEFAULT_PORT,
            token: None,
            regions: Vec::new(),
            permits: Vec::new(),
            loader: None,
        }
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// There is no region.
    #[error("nothing to serve: give it a region, as in --region data=FILE or --region scratch=64M")]
    NoRegions,
    /// There are too many regions.
    #[error("{0} regions are more than the {REGIONS_MAX} that a node serves")]
    TooManyRegions(usize),
    /// Two regions have the same name.
    #[error("two regions are called `{0}`: clients could not tell them apart")]
    Twice(String),
    /// A file cannot be opened.
    #[error("cannot open {path} for region `{name}`: {source}")]
    Open {
        /// The region.
        name: String,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The path is a directory, a device or a pipe.
    #[error("cannot serve {path} as region `{name}`: it is not a regular file")]
    NoFile {
        /// The region.
        name: String,
        /// The path.
        path: PathBuf,
    },
    /// A file is empty.
    #[error("cannot serve {path} as region `{name}`: the file is empty")]
    EmptyFile {
        /// The region.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// The card or the system has no room for a region.
    #[error("cannot make region `{name}`: {source}")]
    Register {
        /// The region.
        name: String,
        /// The reason.
        source: RegisterError,
    },
    /// The card has no room for another object.
    #[error(transparent)]
    Card(#[from] CreateError),
    /// The port is in use.
    #[error("cannot listen on port {port}: {source}")]
    Listen {
        /// The port.
        port: u16,
        /// The reason.
        source: ListenError,
    },
    /// The system gives no more descriptors.
    #[error("cannot set up the node: {0}")]
    System(#[from] io::Error),
}
