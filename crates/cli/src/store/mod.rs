//! `remora store`: the near-data key-value store, served and used.
//!
//! `serve` is the server; `keys` gets, puts and deletes single keys, if a `condition` holds; `scan`
//! selects rows; `load`
//! and `dump` move files in and out; `tablespace` makes and drops tablespaces; `info` shows what
//! the store says of itself. `cluster` is a store on several machines. `progress` shows how far a
//! long command is.

pub(crate) mod cluster;
mod condition;
mod dump;
mod info;
mod keys;
pub(crate) mod load;
mod progress;
mod scan;
mod serve;
mod tablespace;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};
use remora::{Device, wait_for};
use remora_command::node::address::{AddressError, NodeAddress};
use remora_command::size::{SizeError, size_in};
use remora_store::client::{AsyncStoreClient, StoreClient};
use remora_store::layout::{BLOCK_MIN, LIMIT_MIN};
use remora_store::select::schema::{Column, Schema};
use remora_store::way::connect::ClientOptions;
use remora_store::way::door::PORT;

use crate::remote::RemoteArgs;
pub(crate) use info::{Told, told};

/// Has the password of Redis' and memcached's clients, for servers and those who ask them.
pub(crate) const PASSWORD_VARIABLE: &str = "REMORA_STORE_PASSWORD";

/// `remora store`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store serve --redis --memcached        serve a store
  remora store put 127.0.0.2 greeting hello     set a key
  remora store get 127.0.0.2 greeting           read it, by a kernel on the store's card
  remora store load 127.0.0.2 orders.csv --schema orders.schema --key id
  remora store info 127.0.0.2                   hits, latencies, memory
  remora store cluster try                      a store on three nodes, to try (docs/cluster.md)

NODE is the address that `remora store serve` prints. A store beyond loopback needs its token: pass
it by --token, or set REMORA_TOKEN.")]
pub(crate) struct Store {
    #[command(subcommand)]
    what: What,
}

// The command line is read once: what is large is not boxed.
#[allow(clippy::large_enum_variant)]
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
    /// Put a file's rows into the store: CSV, Parquet, or what Redis has saved (RDB)
    Load(load::Load),
    /// Write a tablespace's keys and values, as CSV, JSON, Redis' commands or its RDB file
    Dump(dump::Dump),
    /// Make, drop, list and flush tablespaces
    Tablespace(tablespace::Tablespace),
    /// Show hits, misses, latencies, memory and slow operations
    Info(info::Info),
    /// Show the nodes of a store on several machines, or start one on loopback to try it
    Cluster(cluster::Cluster),
}

impl Store {
    pub(crate) fn run(self) -> Result<std::process::ExitCode> {
        match self.what {
            What::Serve(command) => command.run(),
            What::Get(command) => command.run(),
            What::Put(command) => command.run(),
            What::Delete(command) => command.run(),
            What::Scan(command) => command.run(),
            What::Load(command) => command.run(),
            What::Dump(command) => command.run(),
            What::Tablespace(command) => command.run(),
            What::Info(command) => command.run(),
            What::Cluster(command) => command.run(),
        }
    }
}

/// Parses the memory that a store may take.
fn memory() -> impl TypedValueParser<Value = u64> {
    size_in(LIMIT_MIN..=u64::MAX)
}

/// Parses a tablespace's quota.
fn quota(text: &str) -> Result<u64, SizeError> {
    size_in(BLOCK_MIN..=u64::MAX)(text)
}

/// A store's address: HOST or HOST:PORT.
fn address(text: &str) -> Result<NodeAddress, AddressError> {
    NodeAddress::parse(text, PORT)
}

/// Which store, and which of its tablespaces.
#[derive(Clone, Debug, Args)]
struct StoreArgs {
    #[command(flatten)]
    at: StoreAddress,
    /// The tablespace [default: db0, which Redis' and memcached's clients see]
    #[arg(long, value_name = "NAME")]
    tablespace: Option<String>,
}

/// Which store.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreAddress {
    /// The store: HOST or HOST:PORT
    #[arg(value_parser = address)]
    node: NodeAddress,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl StoreAddress {
    /// Connects, calls `act`, and then prints the card's counters where they were asked for.
    fn with<R>(
        &self,
        options: &ClientOptions,
        act: impl FnOnce(&mut StoreClient) -> Result<R>,
    ) -> Result<R> {
        let device = self.remote.open(self.node)?;
        let options = ClientOptions { token: self.remote.token, ..options.clone() };
        let done = act(&mut StoreClient::connect(&device, self.socket(), &options)?)?;
        self.remote.device.finish(&device);
        Ok(done)
    }

    fn socket(&self) -> std::net::SocketAddr {
        (self.node.ip, self.node.port).into()
    }
}

impl StoreArgs {
    /// Connects, calls `act`, and then prints the card's counters where they were asked for.
    fn with<R>(&self, act: impl FnOnce(&mut StoreClient) -> Result<R>) -> Result<R> {
        self.with_options(&ClientOptions::default(), act)
    }

    fn with_options<R>(
        &self,
        options: &ClientOptions,
        act: impl FnOnce(&mut StoreClient) -> Result<R>,
    ) -> Result<R> {
        self.at.with(options, |client| {
            if let Some(name) = &self.tablespace {
                turn_to(client, name)?;
            }
            act(client)
        })
    }

    /// As [`StoreArgs::with`], with a client that has so many calls under way at once.
    fn with_many<R>(
        &self,
        calls: usize,
        act: impl FnOnce(&mut AsyncStoreClient) -> Result<R>,
    ) -> Result<R> {
        let StoreAddress { node, remote } = &self.at;
        let device = remote.open(*node)?;
        let mut client = self.connect_many(&device, calls)?;
        let done = act(&mut client)?;
        drop(client);
        remote.device.finish(&device);
        Ok(done)
    }

    fn connect_many(&self, device: &Device, calls: usize) -> Result<AsyncStoreClient> {
        let token = self.at.remote.token;
        // Answers of changes are short.
        let options = ClientOptions { token, calls, piece: 4096, ..ClientOptions::default() };
        let connecting = AsyncStoreClient::connect(device, self.at.socket(), &options);
        let late = || anyhow!("the store at {} does not answer", self.at.node);
        let mut client = wait_for(connecting, options.timeout).ok_or_else(late)??;
        if let Some(name) = &self.tablespace {
            let found = wait_for(client.find_tablespace(name), options.timeout);
            let Some(found) = found.ok_or_else(late)?? else {
                bail!("there is no tablespace `{name}`: make it, with `remora store tablespace`");
            };
            client.set_tablespace(found);
        }
        Ok(client)
    }
}

/// Turns a client to the tablespace of this name.
fn turn_to(client: &mut StoreClient, name: &str) -> Result<()> {
    let Some(found) = client.find_tablespace(name)? else {
        let all = client.tablespaces()?;
        let names: Vec<&str> = all.iter().map(|(info, _)| info.options.name.as_str()).collect();
        ensure!(
            !names.contains(&name),
            "clients over the card use the keys of a cluster’s tablespace db0 only, not `{name}`"
        );
        bail!("there is no tablespace `{name}`; there are: {}", names.join(", "));
    };
    client.set_tablespace(found);
    Ok(())
}

/// The column of keys in files and tables, beside those of values: none of them has its name.
fn key_name(columns: &[Column]) -> String {
    let mut name = "key".to_owned();
    while columns.iter().any(|column| column.name == name) {
        name.insert(0, '_');
    }
    name
}

/// Reads a file that says what columns values have.
fn read_schema(path: &Path) -> Result<Schema> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let told = |mistake: remora_store::select::mistake::Mistake| {
        anyhow!(mistake.render(&path.display().to_string(), &text))
    };
    Schema::parse(&text).map_err(told)
}
