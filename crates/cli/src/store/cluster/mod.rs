//! `remora store cluster`, and `remora store serve --cluster`: a store on several machines.
//!
//! `node` is a node of a group. `status` shows and watches a cluster's groups, whose nodes `info`
//! asks. `moves` has slots moved between them; `resize` says how many members a group is to have.
//! `trial` starts groups on loopback. `etcd` is the way to etcd. All need the feature `cluster`;
//! without it, the options are there and say so.
#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "only the options are there"))]

#[cfg(feature = "cluster")]
mod etcd;
#[cfg(feature = "cluster")]
mod info;
#[cfg(feature = "cluster")]
mod moves;
#[cfg(feature = "cluster")]
pub(crate) mod node;
#[cfg(feature = "cluster")]
mod resize;
#[cfg(feature = "cluster")]
mod status;
#[cfg(feature = "cluster")]
pub(crate) mod trial;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use remora_command::node::protocol::is_name;
use remora_command::seconds::seconds;
use remora_command::size::{SizeError, size_in};
use remora_store::front::slots::Range;
use remora_store::service::{FIRST, MEMCACHED};
use remora_store::tablespace::TablespaceOptions;

#[cfg(feature = "cluster")]
pub(super) use self::node::serve;
use super::PASSWORD_VARIABLE;

/// What a build without clusters says.
#[cfg(not(feature = "cluster"))]
pub(crate) const MISSING: &str = "this build of remora has no clusters: \
                                  `cargo build --release -p remora-cli --features cluster` makes \
                                  one that has, and needs protoc (Debian: protobuf-compiler, \
                                 libprotobuf-dev)";
/// Where etcd is if nobody says.
const ETCD: &str = "http://127.0.0.1:2379";
/// The group of a node if nobody says.
const GROUP: &str = "a";
/// The longest ring, in bytes.
const RING_MAX: u64 = 1 << 30;
/// The shortest and the longest lease, in seconds: it is renewed three times, over a network.
const LEASE_MIN_S: f64 = 0.1;
const LEASE_MAX_S: f64 = 600.0;
/// The shortest ring, in bytes: it takes records of a quarter of it.
const RING_MIN: u64 = 1 << 16;

/// `remora store cluster`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store cluster try                          three nodes on loopback, until Ctrl-C
  remora store cluster status orders --etcd http://10.0.0.1:2379
  remora store cluster watch orders --etcd http://10.0.0.1:2379 --every 5
  remora store cluster move orders 0-8191 b         to group b, while clients work
  remora store cluster resize orders 5              five members, while clients work

A node is started by `remora store serve --cluster NAME --group GROUP --etcd URL --redis`.")]
pub(super) struct Cluster {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the groups: who is the primary and for how long, how far the others are, and the slots
    Status(Status),
    /// Show it again and again
    Watch(Watch),
    /// Move slots with their keys to a group, while clients work
    Move(Move),
    /// Say how many members a group is to have, while clients work
    Resize(Resize),
    /// Start etcd and some nodes on loopback, to try; all of it goes with Ctrl-C
    Try(Try),
}

/// `remora store cluster status`.
#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    group: GroupArgs,
    /// Show what each node has counted, too
    #[arg(long)]
    counters: bool,
    /// Print a line of JSON
    #[arg(long)]
    json: bool,
}

/// `remora store cluster watch`.
#[derive(Debug, Args)]
struct Watch {
    #[command(flatten)]
    group: GroupArgs,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: u64,
    /// Print a line of JSON each time
    #[arg(long)]
    json: bool,
}

/// `remora store cluster move`.
#[derive(Debug, Args)]
struct Move {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The slots: 7, 0-5460, or several of both with commas between them
    #[arg(value_parser = slot_list)]
    slots: SlotList,
    /// The group that is to have them
    #[arg(value_parser = group_name)]
    to: String,
    /// No group has these slots any more, and none that has them comes back: begin with what this
    /// one has of their keys
    #[arg(long)]
    lost: bool,
    /// Do not wait until they are there
    #[arg(long)]
    no_wait: bool,
}

/// `remora store cluster resize`.
#[derive(Debug, Args)]
struct Resize {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// How many members
    #[arg(value_parser = clap::value_parser!(u8).range(1..=15))]
    members: u8,
    /// The group
    #[arg(long, default_value = GROUP, value_parser = group_name)]
    group: String,
    /// Do not wait until it has them
    #[arg(long)]
    no_wait: bool,
}

/// Slots that were named.
#[derive(Clone, Debug)]
struct SlotList(Vec<Range>);

/// `remora store cluster try`.
#[derive(Debug, Args)]
struct Try {
    /// How many groups: each has as many of the slots
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    groups: u8,
    /// How many nodes each group has
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// The store's memory on each node
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = super::memory())]
    memory: u64,
    /// Seconds that a primary may serve without a word from etcd
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = lease)]
    lease: Duration,
    /// Print a line of JSON when the group serves
    #[arg(long)]
    json: bool,
    /// Stop when standard input closes (for a parent process)
    #[arg(long, hide = true)]
    until_eof: bool,
}

/// A cluster that is there.
#[derive(Debug, Args)]
struct ClusterArgs {
    /// The cluster's name
    #[arg(value_parser = group_name)]
    name: String,
    #[command(flatten)]
    etcd: EtcdArgs,
}

/// A cluster that is there, and who asks its nodes.
#[derive(Debug, Args)]
struct GroupArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The password of the nodes' Redis clients
    #[arg(long, env = PASSWORD_VARIABLE, hide_env_values = true)]
    password: Option<String>,
}

/// With which of its members a group begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Restore {
    /// Most of the last ones, who have all that was acknowledged
    Whole,
    /// Those that are there
    Anyway,
}

/// A node of a group.
#[derive(Debug, Args)]
#[command(next_help_heading = "A store on several machines")]
pub(super) struct NodeArgs {
    /// Be a node of this cluster: the nodes of a group hold the same keys, and its primary serves
    /// them. Clients come by Redis' and memcached's protocols, and over the card
    #[arg(long, value_name = "NAME", value_parser = group_name, requires = "redis",
          conflicts_with = "evict")]
    cluster: Option<String>,
    /// Of which group of the cluster: the first one begins with all slots, others get theirs by
    /// `remora store cluster move`
    #[arg(long, value_name = "GROUP", default_value = GROUP, requires = "cluster",
          value_parser = group_name)]
    group: String,
    /// How many members the group has: it begins when as many nodes are there, and a node more
    /// takes the place of one that is lost
    #[arg(long, default_value_t = 3, requires = "cluster",
          value_parser = clap::value_parser!(u8).range(1..=15))]
    nodes: u8,
    /// For how long the primary may serve without a word from etcd, in seconds, such as 0.5: after
    /// that, another node takes over. The node that comes first decides
    #[arg(long, value_name = "SECONDS", default_value = "3", requires = "cluster",
          value_parser = lease)]
    lease: Duration,
    /// The bytes of changes that a node may be behind before it gets a copy of everything. The node
    /// that comes first decides. No change is longer than a quarter of it; that of the default
    /// takes the longest key and value
    #[arg(long, value_name = "SIZE", default_value = "65M", requires = "cluster",
          value_parser = ring_size)]
    ring: u64,
    /// If etcd has lost its data: begin the group again from its nodes' directories, once most of
    /// its last members are there. With `anyway`, begin without most of them as well, once as many
    /// nodes are there as --nodes says: what none of them has is lost
    #[arg(long, value_name = "HOW", requires_all = ["cluster", "dir"], num_args = 0..=1,
          require_equals = true, default_missing_value = "whole")]
    restore: Option<Restore>,
    #[command(flatten)]
    etcd: EtcdArgs,
}

/// Which etcd, and who asks it.
#[derive(Clone, Debug, Args)]
struct EtcdArgs {
    /// Members of etcd [default: http://127.0.0.1:2379]
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = etcd_url)]
    etcd: Vec<String>,
    /// The certificates, in PEM, of the authorities that may have signed etcd’s: for https:
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// The certificate, in PEM, that etcd is shown, if it asks for one
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    etcd_cert: Option<PathBuf>,
    /// The certificate’s key, in PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
    /// The user, if etcd asks for one
    #[arg(long, value_name = "NAME")]
    etcd_user: Option<String>,
    /// The file that holds the user’s password [default: what REMORA_ETCD_PASSWORD says]
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl Cluster {
    pub(super) fn run(self) -> Result<ExitCode> {
        #[cfg(feature = "cluster")]
        match self.what {
            What::Status(command) => command.run()?,
            What::Watch(command) => command.run()?,
            What::Move(command) => return command.run(),
            What::Resize(command) => return command.run(),
            What::Try(command) => command.run()?,
        }
        #[cfg(not(feature = "cluster"))]
        anyhow::bail!(MISSING);
        #[cfg(feature = "cluster")]
        Ok(ExitCode::SUCCESS)
    }
}

impl NodeArgs {
    /// The cluster's name, if the store is to be a node of one.
    pub(super) fn name(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// An error if the options do not go together.
    pub(super) fn check(&self) -> Result<()> {
        let is_alone = self.cluster.is_none();
        let has_etcd = !self.etcd.etcd.is_empty() || self.etcd.etcd_user.is_some();
        let has_etcd = has_etcd || self.etcd.etcd_ca.is_some();
        ensure!(!(is_alone && has_etcd), "--etcd is for a node of a group: add --cluster NAME");
        #[cfg(not(feature = "cluster"))]
        ensure!(is_alone, MISSING);
        Ok(())
    }
}

/// Without clusters, [`NodeArgs::check`] lets nobody come here.
#[cfg(not(feature = "cluster"))]
pub(super) fn serve(
    _device: &remora::Device,
    _name: &str,
    _args: &NodeArgs,
    _options: &remora_store::service::ServiceOptions,
    _json: bool,
    _stop: &std::sync::atomic::AtomicBool,
) -> Result<()> {
    anyhow::bail!(MISSING)
}

/// Refuses tablespaces that no client of a cluster could fill.
pub(super) fn are_used<'a>(
    tablespaces: impl IntoIterator<Item = &'a TablespaceOptions>,
) -> Result<()> {
    let is_used = |space: &&TablespaceOptions| [FIRST, MEMCACHED].contains(&&*space.name);
    match tablespaces.into_iter().find(|space| !is_used(space)) {
        None => Ok(()),
        Some(other) => bail!(
            "--tablespace {}: in a cluster, clients use {FIRST}, and those of memcached \
             {MEMCACHED}; nobody could fill another one. Leave it out, or serve a store alone",
            other.name
        ),
    }
}

/// A group's name, as etcd has it.
#[cfg(feature = "cluster")]
fn full_name(cluster: &str, group: &str) -> String {
    format!("{cluster}/{group}")
}

/// A cluster's or a group's name: it is a part of the names of its keys in etcd.
fn group_name(text: &str) -> Result<String, String> {
    if is_name(text) && !text.starts_with('@') {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is no name for a cluster or a group: use 1 to 32 letters, digits, dots, dashes \
         and underscores"
    ))
}

fn slot_list(text: &str) -> Result<SlotList, String> {
    text.split(',').map(str::parse).collect::<Result<_, _>>().map(SlotList)
}

fn etcd_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest {
        Some(rest) if !rest.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("`{text}` is no URL of etcd: write http://HOST:2379, or https:")),
    }
}

/// Bytes of a ring: a multiple of 8.
fn ring_size(text: &str) -> Result<u64, SizeError> {
    Ok(size_in(RING_MIN..=RING_MAX)(text)? & !7)
}

/// A lease: some tenths of a second to ten minutes, in whole milliseconds.
fn lease(text: &str) -> Result<Duration, String> {
    let seconds = seconds(text)?.as_secs_f64();
    if (LEASE_MIN_S..=LEASE_MAX_S).contains(&seconds) {
        return Ok(Duration::from_millis((seconds * 1000.0) as u64));
    }
    Err(format!("a lease of {seconds} s cannot be: it has {LEASE_MIN_S} to {LEASE_MAX_S} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        assert_eq!(group_name("orders-1").unwrap(), "orders-1");
        for wrong in ["", "a/b", "@a", "a b"] {
            assert!(group_name(wrong).unwrap_err().contains("no name"), "{wrong}");
        }
        assert_eq!(etcd_url("http://10.0.0.1:2379").unwrap(), "http://10.0.0.1:2379");
        assert_eq!(etcd_url("https://a:2379").unwrap(), "https://a:2379");
        assert!(etcd_url("10.0.0.1:2379").unwrap_err().contains("http://"));
        assert_eq!(slot_list("7,9-11").unwrap().0.len(), 2);
        assert!(slot_list("7,").unwrap_err().contains("no slots"));
        assert_eq!(ring_size("1000001"), Ok(1_000_000));
        assert!(ring_size("1K").is_err() && ring_size("2G").is_err());
        assert_eq!(lease("0.5"), Ok(Duration::from_millis(500)));
        assert!(["0.01", "601", "NaN", "soon"].into_iter().all(|text| lease(text).is_err()));
    }
}
