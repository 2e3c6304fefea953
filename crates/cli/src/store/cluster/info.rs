//! What a node says of itself, by Redis' `INFO`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use remora_cluster::NodeId;

/// How long a node may take for each step.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest reply, in bytes.
const REPLY_MAX: u64 = 64 << 10;

/// What a node says of its part in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// What it does, in a word: `follows`, `serves`, …
    pub(super) standing: String,
    /// The latest epoch that it has heard of.
    pub(super) epoch: u32,
    /// Where its log ends, in bytes.
    pub(super) log_bytes: u64,
    /// Up to where its store has carried out the log, in bytes.
    pub(super) applied_bytes: u64,
    /// For how long it has served, if it serves.
    pub(super) serving_s: Option<u64>,
    /// Links to other nodes that broke.
    pub(super) broken_links: u64,
    /// `ok`, or what it hears of etcd instead.
    pub(super) service: String,
    /// `ok`, or why its disk takes nothing.
    pub(super) disk: String,
    /// `ok`, or that no majority confirms what it orders.
    pub(super) majority: String,
    /// What its replica has counted, by name.
    pub(super) counters: BTreeMap<&'static str, u64>,
    /// `none`, or why another node was last not let in or not reached.
    pub(super) refusal: String,
    /// How its group's moves of slots stand, where it knows.
    pub(super) moves: Option<Moves>,
}

/// How a group's moves of slots to other groups stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moves {
    /// Keys that this node has handed over since it began.
    pub(super) moved: u64,
    /// Keys that it hands over at the moment.
    pub(super) in_transit: u64,
    /// `ok`, or why a move waits.
    pub(super) state: String,
}

/// The names of what a replica counts.
pub(super) const COUNTERS: [&str; 9] = [
    "fenced",
    "stale",
    "refused",
    "served",
    "overrun",
    "snapshots",
    "truncated",
    "resigned",
    "full",
];

impl Told {
    /// Asks the node that is to be at this address.
    ///
    /// # Errors
    /// It does not answer, or is none, or another one.
    pub(super) fn ask(node: NodeId, at: SocketAddr, password: Option<&str>) -> Result<Told> {
        let stream = TcpStream::connect_timeout(&at, PATIENCE).context("it cannot be reached")?;
        stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)))?;
        let mut replies = BufReader::new(&stream);
        if let Some(password) = password {
            send(&stream, &["AUTH", password])?;
            reply(&mut replies).context("it does not take the password")?;
        }
        send(&stream, &["INFO", "persistence"])?;
        let text =
            reply(&mut replies).map_err(|error| match error.to_string().contains("NOAUTH") {
                true => anyhow!("it asks for a password: name it with --password"),
                false => error,
            })?;
        Told::read(node, &text)
    }

    /// What it does, and what keeps it from more.
    pub(super) fn state(&self) -> String {
        let Told { standing, service, disk, majority, .. } = self;
        let reasons = [("of etcd", service), ("its disk", disk), ("a majority", majority)];
        let reasons = reasons.into_iter().filter(|(_, reason)| *reason != "ok");
        reasons.fold(standing.clone(), |said, (what, reason)| format!("{said}; {what}: {reason}"))
    }

    fn read(node: NodeId, text: &str) -> Result<Told> {
        let entries: BTreeMap<_, _> =
            text.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
        let found = entries.get("cluster_node").context("it is no node of a group")?;
        ensure!(*found == node.to_string(), "another node is there: {}", remora::printable(found));
        Ok(Told {
            standing: entry(&entries, "cluster_standing")?,
            epoch: entry(&entries, "cluster_epoch")?,
            log_bytes: entry(&entries, "cluster_log_bytes")?,
            applied_bytes: entry(&entries, "cluster_applied_bytes")?,
            serving_s: entry(&entries, "cluster_serving_s").ok(),
            broken_links: entry(&entries, "cluster_broken_links")?,
            service: entry(&entries, "cluster_service")?,
            disk: entry(&entries, "cluster_disk")?,
            majority: entry(&entries, "cluster_majority")?,
            counters: COUNTERS
                .iter()
                .map(|name| Ok((*name, entry(&entries, &format!("cluster_{name}"))?)))
                .collect::<Result<_>>()?,
            refusal: entry(&entries, "cluster_refusal")?,
            moves: Moves::read(&entries),
        })
    }
}

impl Moves {
    fn read(entries: &BTreeMap<&str, &str>) -> Option<Moves> {
        Some(Moves {
            moved: entry(entries, "cluster_keys_moved").ok()?,
            // While slots change hands, a node does not say.
            in_transit: entry(entries, "cluster_keys_in_transit").unwrap_or(0),
            state: entry(entries, "cluster_moves").ok()?,
        })
    }
}

fn entry<T: FromStr>(entries: &BTreeMap<&str, &str>, name: &str) -> Result<T> {
    let value = entries.get(name).and_then(|value| value.parse().ok());
    value.with_context(|| format!("it does not say {name}: is it of another version?"))
}

/// Sends a command.
fn send(mut stream: &TcpStream, words: &[&str]) -> Result<()> {
    let mut bytes = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
    stream.write_all(bytes.as_bytes()).context("it takes no command")
}

/// Reads a reply that is a line or a text.
fn reply(stream: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    stream.take(REPLY_MAX).read_line(&mut line).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => anyhow!("it has not answered for {PATIENCE:?}"),
        _ => anyhow!("it does not answer: {error}"),
    })?;
    let line = line.trim_end();
    if let Some(length) = line.strip_prefix('$') {
        let length: u64 = length.parse().context("it answers what is none of Redis’ replies")?;
        ensure!(length <= REPLY_MAX, "its answer is too long: {length} bytes");
        let mut bytes = vec![0; length as usize + 2];
        stream.read_exact(&mut bytes).context("its answer breaks off")?;
        return Ok(String::from_utf8_lossy(&bytes[..length as usize]).into_owned());
    }
    match line.strip_prefix('+') {
        Some(said) => Ok(said.to_owned()),
        None if line.is_empty() => bail!("it has ended the connection"),
        None => bail!("it answers: {}", remora::printable(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Persistence\r\ncluster_node:n7\r\ncluster_standing:follows\r\n\
                        cluster_epoch:3\r\ncluster_log_bytes:96\r\ncluster_applied_bytes:64\r\n\
                        cluster_broken_links:1\r\ncluster_service:ok\r\ncluster_disk:ok\r\n\
                        cluster_majority:ok\r\ncluster_fenced:2\r\n\
                        cluster_stale:0\r\ncluster_refused:0\r\ncluster_served:3\r\n\
                        cluster_overrun:0\r\ncluster_snapshots:1\r\ncluster_truncated:0\r\n\
                        cluster_resigned:0\r\ncluster_full:4\r\ncluster_refusal:none\r\n";

    #[test]
    fn what_a_node_says_is_read() {
        let told = Told::read(NodeId(7), INFO).unwrap();
        assert_eq!((told.standing.as_str(), told.epoch), ("follows", 3));
        assert_eq!((told.log_bytes, told.applied_bytes, told.serving_s), (96, 64, None));
        assert_eq!((told.counters["fenced"], told.counters["full"]), (2, 4));
        assert_eq!(told.moves, None);
        assert_eq!(told.state(), "follows");
        let full = INFO.replace("_disk:ok", "_disk:it is full");
        assert_eq!(Told::read(NodeId(7), &full).unwrap().state(), "follows; its disk: it is full");
        let moves = "cluster_keys_moved:9\r\ncluster_keys_in_transit:2\r\ncluster_moves:ok\r\n";
        let moves = Told::read(NodeId(7), &format!("{INFO}{moves}")).unwrap().moves.unwrap();
        assert_eq!((moves.moved, moves.in_transit, moves.state.as_str()), (9, 2, "ok"));
        let error = |node, text: &str| Told::read(NodeId(node), text).unwrap_err().to_string();
        assert_eq!(error(8, INFO), "another node is there: n7");
        assert!(error(7, "loading:0\r\n").contains("no node"));
        assert!(error(7, &INFO.replace("_epoch:3", "_epoch:x")).contains("cluster_epoch"));
    }

    #[test]
    fn replies_are_texts_lines_or_reasons() {
        let read = |bytes: &[u8]| reply(&mut &bytes[..]).map_err(|error| error.to_string());
        assert_eq!(read(b"$2\r\nab\r\n").unwrap(), "ab");
        assert_eq!(read(b"+OK\r\n").unwrap(), "OK");
        assert_eq!(read(b"-NOAUTH no\r\n").unwrap_err(), "it answers: -NOAUTH no");
        for wrong in [&b""[..], b"$2\r\na", b"$-1\r\n", b"$99999999\r\n", b"*1\r\n", b"\xff\n"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
