//! `remora store`: the near-data key-value store, served and used.
//!
//! `serve` is the server; `keys` gets, puts and deletes single keys; `scan` selects rows.

mod keys;
mod scan;
mod serve;

use anyhow::Result;
use clap::{Args, Subcommand};
use remora_cli::node::address::{AddressError, NodeAddress};
use remora_store::client::StoreClient;
use remora_store::way::connect::ClientOptions;
use remora_store::way::door::PORT;

use crate::remote::RemoteArgs;

/// `remora store`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store serve --redis --memcached        serve a store
  remora store put 127.0.0.2 greeting hello     set a key
  remora store get 127.0.0.2 greeting           read it, by a kernel on the store's card

NODE is the address that `remora store serve` prints. A store beyond loopback needs its token: pass
it by --token, or set REMORA_TOKEN.")]
pub(crate) struct Store {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Serve a store: over the card, and to the clients of Redis and memcached
    Serve(serve::Serve),
    /// Read a key's value
    Get(keys::Get),
    /// Set a key's value
    Put(keys::Put),
    /// Remove keys
    Delete(keys::Delete),
    /// List keys, or the rows that a predicate selects next to the data
    Scan(scan::Scan),
}

impl Store {
    pub(crate) fn run(self) -> Result<std::process::ExitCode> {
        match self.what {
            What::Serve(command) => command.run(),
            What::Get(command) => command.run(),
            What::Put(command) => command.run(),
            What::Delete(command) => command.run(),
            What::Scan(command) => command.run(),
        }
    }
}

/// A store's address: IP or IP:PORT.
fn address(text: &str) -> Result<NodeAddress, AddressError> {
    NodeAddress::parse(text, PORT)
}

/// Which store, and which of its tablespaces.
#[derive(Clone, Debug, Args)]
struct StoreArgs {
    /// The store: IP or IP:PORT
    #[arg(value_parser = address)]
    node: NodeAddress,
    /// The number of the tablespace
    #[arg(long, default_value_t = 0)]
    tablespace: u16,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl StoreArgs {
    /// Connects, calls `act`, and then prints the card's counters where they were asked for.
    fn with<R>(&self, act: impl FnOnce(&mut StoreClient) -> Result<R>) -> Result<R> {
        let device = self.remote.open(self.node)?;
        let options = ClientOptions {
            token: self.remote.token,
            tablespace: self.tablespace,
            ..ClientOptions::default()
        };
        let to = (self.node.ip, self.node.port).into();
        let done = act(&mut StoreClient::connect(&device, to, &options)?)?;
        self.remote.device.finish(&device);
        Ok(done)
    }
}
