//! The server: a store on a card, in every way at once.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum as _};
use remora::connection::token::Token;
use remora_command::device::{DeviceArgs, token_of_node};
use remora_command::random;
use remora_store::log::{Fsync, Recovery};
use remora_store::service::{KeepOptions, Service, ServiceOptions};
use remora_store::tablespace::{Eviction, TablespaceOptions};
use remora_store::way::door::PORT;
use serde_json::json;

use super::cluster::{self, NodeArgs};
use super::progress::reading_back;
use super::tablespace::Stored;
use super::{PASSWORD_VARIABLE, quota};
use crate::failure::wrong_line;
use crate::{output, stop};

/// How often the command looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

/// `remora store serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store serve                                  over the card, for this machine
  remora store serve --redis --memcached              for redis-cli and memcached's clients, too
  remora store serve --memory 4G --evict --tablespace orders:1G:lz4
  remora store serve --cluster orders --etcd http://10.0.0.1:2379 --bind 10.0.0.2 \\
    --redis 10.0.0.2:6379 --password SECRET           a node of a group (docs/cluster.md)
  … --dir /srv/orders --fsync always                  with its log on the disk

Redis' database 0, memcached and the card's clients see the same keys: the tablespace db0. Every
user of this machine can connect to a loopback address. Beyond loopback, clients over the card need
the token, those of Redis and memcached the password.")]
pub(super) struct Serve {
    #[command(flatten)]
    device: DeviceArgs,
    /// Port of RDMA CM's TCP port space
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// The most bytes that keys and values may take, with what belongs to them
    #[arg(long, default_value = "1G", value_parser = super::memory())]
    memory: u64,
    /// Serve Redis' clients [default address: 127.0.0.1:6379]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "6379")]
    redis: Option<Front>,
    /// Serve memcached's clients [default address: 127.0.0.1:11211]
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "11211")]
    memcached: Option<Front>,
    /// Threads for the clients of Redis and memcached
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
    /// A tablespace, with the most bytes that it may have and how its values are stored; may be
    /// given several times
    #[arg(long = "tablespace", value_name = "NAME[:SIZE[:lz4|zstd]]")]
    tablespaces: Vec<Space>,
    /// Keep every change in this directory, in a log and snapshots, and begin with what it has
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// When a change counts as kept: always (it is on the disk before the answer leaves), everysec,
    /// or no (when the system thinks fit)
    #[arg(long, value_name = "WHEN", default_value = "everysec", requires = "dir")]
    fsync: Fsync,
    /// Serve what the directory has before damage, to be read only, and write nothing to it
    #[arg(long, requires = "dir", conflicts_with = "cluster")]
    damaged: bool,
    /// Where memory is short, let go what has not been used for some time
    #[arg(long)]
    evict: bool,
    /// The token that clients over the card must show, 32 hexadecimal digits. Beyond loopback, give
    /// all nodes of a cluster the same one, or they let no client over the card in [default: none
    /// on loopback, a new one beyond it]
    #[arg(long, env = "REMORA_TOKEN", hide_env_values = true)]
    token: Option<Token>,
    /// The password of Redis' and memcached's clients
    #[arg(long, env = PASSWORD_VARIABLE, hide_env_values = true)]
    password: Option<String>,
    #[command(flatten)]
    group: NodeArgs,
    /// Print a line of JSON when the store serves
    #[arg(long)]
    json: bool,
    /// Stop when standard input closes (for a parent process)
    #[arg(long, hide = true)]
    until_eof: bool,
}

/// Where a protocol is served: ADDR:PORT, or a port of 127.0.0.1.
#[derive(Clone, Copy, Debug)]
struct Front(SocketAddr);

impl FromStr for Front {
    type Err = String;

    fn from_str(text: &str) -> Result<Front, String> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        text.parse::<u16>()
            .map(local)
            .or_else(|_| text.parse())
            .map(Front)
            .map_err(|_| format!("`{text}` is no address: write ADDR:PORT, as in 127.0.0.1:6379"))
    }
}

/// A tablespace, as a person names it.
#[derive(Clone, Debug)]
struct Space(TablespaceOptions);

impl FromStr for Space {
    type Err = String;

    fn from_str(text: &str) -> Result<Space, String> {
        let mut words = text.split(':');
        let mut options = TablespaceOptions::new(words.next().unwrap_or_default());
        if let Some(size) = words.next().filter(|size| !size.is_empty()) {
            options.quota = Some(quota(size).map_err(|error| error.to_string())?);
        }
        if let Some(word) = words.next() {
            let stored = Stored::from_str(word, false);
            let unknown = || format!("`{word}` is no way to store values: write lz4, or zstd");
            options.codec = stored.map_err(|_| unknown())?.codec(0);
        }
        if !options.codec.is_available() {
            return Err(
                "this program was built without zstd: build it with `cargo build --release \
                        -p remora-cli --features zstd`"
                    .to_owned(),
            );
        }
        match words.next() {
            None => Ok(Space(options)),
            Some(_) => Err(format!("`{text}` has too many parts: write NAME[:SIZE[:lz4|zstd]]")),
        }
    }
}

impl Serve {
    pub(super) fn run(self) -> Result<ExitCode> {
        let stop = stop::on_signals()?;
        self.check().map_err(wrong_line)?;
        let (group, is_served) = (self.group.name(), self.has_fronts());
        let device = self.device.open()?;
        if self.until_eof {
            stop::on_end_of_input(stop.clone())?;
        }
        let token = token_of_node(&device, self.token)?;
        let reads_only = device.is_attached();
        ensure!(
            !reads_only || is_served,
            "the card is a daemon’s, which does not run the store’s kernels, so that nobody could \
             put a key: serve --redis or --memcached, too, or set REMORA_NIC=off for a card of the \
             store’s own"
        );
        if let Some(name) = group {
            // A token that no other node has lets nobody in.
            let options = self.options(token)?;
            cluster::serve(&device, name, &self.group, &options, self.json, &stop)?;
            self.device.finish(&device);
            return Ok(ExitCode::SUCCESS);
        }
        let started = Service::start(&device, &self.options(token)?);
        let service = started.map_err(|error| match error.is_damage() {
            true => anyhow!("{error}. To read what comes before the damage, add --damaged"),
            false => error.into(),
        })?;
        self.announce(&service, token, reads_only)?;
        while !stop.load(Ordering::Relaxed) && !service.has_ended() {
            std::thread::sleep(LOOK);
        }
        let ended = service.end();
        self.device.finish(&device);
        ended.map_err(|error| anyhow!(error))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Are Redis' or memcached's clients served?
    fn has_fronts(&self) -> bool {
        self.redis.is_some() || self.memcached.is_some()
    }

    /// An error if the options do not go together.
    fn check(&self) -> Result<()> {
        self.group.check()?;
        // (A variable is also there for those who ask servers.)
        let given = self.password.is_some() && self.password != env::var(PASSWORD_VARIABLE).ok();
        ensure!(
            self.has_fronts() || !given,
            "--password is of Redis’ and memcached’s clients, and none are served: add --redis or \
             --memcached, or leave it out"
        );
        let names = || self.tablespaces.iter().map(|space| &space.0.name);
        let twice = names().enumerate().find(|(at, name)| names().take(*at).any(|n| n == *name));
        if let Some((_, name)) = twice {
            bail!("--tablespace {name} is given twice: give it once");
        }
        if self.group.name().is_some() {
            cluster::are_used(self.tablespaces.iter().map(|space| &space.0))?;
        }
        Ok(())
    }

    fn options(&self, token: Option<Token>) -> Result<ServiceOptions> {
        let seed = u64::from_ne_bytes(random::bytes()?);
        let mut options = ServiceOptions::new(self.memory, seed);
        let eviction = if self.evict { Eviction::Clock } else { Eviction::Never };
        options.defaults.eviction = eviction;
        let spaces = self.tablespaces.iter().map(|space| space.0.clone());
        options.tablespaces = spaces.map(|space| TablespaceOptions { eviction, ..space }).collect();
        let (fsync, damaged) = (self.fsync, self.damaged);
        options.keep = self.dir.clone().map(|directory| KeepOptions {
            directory,
            fsync,
            damaged,
            progress: reading_back(),
        });
        options.door.port = self.port;
        options.door.token = token;
        options.fronts.redis = self.redis.iter().map(|front| front.0).collect();
        options.fronts.memcached = self.memcached.iter().map(|front| front.0).collect();
        options.fronts.threads = self.threads.get();
        options.fronts.password = self.password.clone();
        Ok(options)
    }

    fn announce(&self, service: &Service, token: Option<Token>, reads_only: bool) -> Result<()> {
        let fronts = |which: fn(&remora_store::front::server::Server) -> &[SocketAddr]| {
            service.fronts().map(|server| which(server).to_vec()).unwrap_or_default()
        };
        let (redis, memcached) =
            (fronts(|server| server.redis()), fronts(|server| server.memcached()));
        let address = service.address();
        if self.json {
            return output::json_line(&json!({
                "store": address.to_string(),
                "token": token.map(|token| token.to_string()),
                "redis": redis,
                "memcached": memcached,
                "records": service.recovery().map(|found| found.log.records),
                "read_only": service.read_only(),
            }));
        }
        println!("Store at {address}: RoCE v2 on UDP 4791, RDMA CM port {}.", address.port());
        for (name, addresses) in [("Redis", redis), ("memcached", memcached)] {
            addresses.iter().for_each(|at| println!("{name}’s clients: TCP {at}."));
        }
        if let Some(found) = service.recovery() {
            println!("{}", read_back(found));
        }
        if let Some(reason) = service.read_only() {
            println!("The store takes no changes: {reason}.");
        }
        if let Some(token) = token {
            println!("Clients over the card need this token: export REMORA_TOKEN={token}");
        }
        if reads_only {
            println!(
                "The card is a daemon’s: clients over it read, by READs and chains, and change \
                 nothing. Stop: Ctrl-C"
            );
            return Ok(());
        }
        let ip = address.ip();
        println!("Try: remora store put {ip} greeting hello        Stop: Ctrl-C");
        Ok(())
    }
}

/// What was found in the directory, in words.
pub(super) fn read_back(found: &Recovery) -> String {
    let snapshot = found.snapshot.map_or(0, |snapshot| snapshot.records);
    let records = found.log.records;
    let mut said = format!(
        "Read back {} of a snapshot and {} of the log.",
        output::counted(snapshot, "record"),
        output::counted(records, "change")
    );
    if let Some(torn) = &found.log.torn {
        let (file, offset, reason) = (&torn.file, torn.offset, torn.reason);
        said += &format!(
            " The log ended within a change, which nobody was told of: {file}, byte \
                          {offset}: {reason}."
        );
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tablespaces_are_read_or_refused() {
        let space: Space = "a:1M:lz4".parse().unwrap();
        assert_eq!((space.0.name.as_str(), space.0.quota), ("a", Some(1 << 20)));
        for text in ["a:0", "a:1", "a:1M:lz5", "a:1M:lz4:x", "a:much"] {
            assert!(text.parse::<Space>().is_err(), "{text}");
        }
    }
}
