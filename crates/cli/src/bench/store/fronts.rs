//! The rows of what TCP reaches: Redis' and memcached's protocols, a log that is on the disk before
//! the answer, and the memory that a key takes.

use anyhow::{Context, Result};

use super::super::row::{PeerSide, Row, Run, Spread, Target};
use super::extent::Extent;
use super::servers::{
    MEMCACHED_MISSING, Memcached, REDIS_MISSING, Rate, Server, TemporaryFile, is_there,
};

/// Connections to a server that logs.
const CLIENTS: &str = "64";
const CONNECTIONS: &str = "50";

/// Rows of `redis-benchmark`: by the clock, by the server's processor time, the test, requests in
/// flight on each connection, and what is asked.
const REDIS: [(&str, &str, &str, u32, f64); 4] = [
    ("redis_get_p1", "redis_get_p1_cpu", "get", 1, 1.3),
    ("redis_set_p1", "redis_set_p1_cpu", "set", 1, 1.3),
    ("redis_get_p16", "redis_get_p16_cpu", "get", 16, 1.7),
    ("redis_set_p16", "redis_set_p16_cpu", "set", 16, 1.7),
];
const MEMCACHED: (&str, &str) = ("memcached_get", "memcached_get_cpu");
const LOGGED: (&str, &str) = ("put_logged_64B", "put_logged_64B_cpu");
const RESIDENT: &str = "bytes_a_key";

/// A way to measure a server once.
type Load<'a> = Box<dyn FnMut() -> Result<Rate> + 'a>;

/// A run of a side that is not there.
pub(super) fn nothing<'a>() -> Run<'a> {
    Box::new(|| Ok(f64::NAN))
}

/// Adds the rows that are wanted.
pub(super) fn rows(
    is_wanted: &dyn Fn(&str) -> bool,
    extent: Extent,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let either = |(wall, cpu): (&str, &str)| is_wanted(wall) || is_wanted(cpu);
    let has_client = is_there("redis-benchmark");
    if either(LOGGED) && has_client {
        rows.extend(logged(extent)?);
    }
    if has_client && REDIS.iter().any(|(wall, cpu, ..)| either((wall, cpu))) {
        redis(&|wall, cpu| either((wall, cpu)), extent, rows)?;
    }
    if either(MEMCACHED) && is_there("memcaslap") {
        let (ours, peer) = (Memcached::start_ours()?, Memcached::start_peer()?);
        let theirs = peer.as_ref().map(|server| -> Load<'_> { Box::new(|| server.load()) });
        let peer = if theirs.is_some() { "memcached -t 1" } else { MEMCACHED_MISSING };
        rows.extend(both(MEMCACHED, 1.2, peer, extent, Box::new(|| ours.load()), theirs)?);
    }
    if is_wanted(RESIDENT) {
        rows.push(resident(extent)?);
    }
    let missing = |names: &[&str], program: &str| {
        if !is_there(program) && names.iter().any(|name| is_wanted(name)) {
            println!("{} needs {program}, which is not installed", names.join(", "));
        }
    };
    REDIS.iter().for_each(|(wall, cpu, ..)| missing(&[wall, cpu], "redis-benchmark"));
    missing(&[LOGGED.0, LOGGED.1], "redis-benchmark");
    missing(&[MEMCACHED.0, MEMCACHED.1], "memcaslap");
    rows.retain(|row| is_wanted(&row.name));
    Ok(())
}

/// Measures both sides in turn: a row by the clock, and one by the servers' processor time.
fn both(
    names: (&'static str, &'static str),
    target: f64,
    peer: &'static str,
    extent: Extent,
    mut ours: Load<'_>,
    mut theirs: Option<Load<'_>>,
) -> Result<[Row; 2]> {
    let (mut walls, mut cpus) = ([vec![], vec![]], [vec![], vec![]]);
    for _ in 0..extent.fronts {
        let missing = Rate { wall: f64::NAN, cpu: f64::NAN };
        let theirs = theirs.as_mut().map_or(Ok(missing), |theirs| theirs());
        let context = || format!("cannot measure {}", names.0);
        for (side, rate) in [ours(), theirs].into_iter().enumerate() {
            let Rate { wall, cpu } = rate.with_context(context)?;
            walls[side].push(wall);
            cpus[side].push(cpu);
        }
    }
    let is_there = theirs.is_some();
    let row = |name: &'static str, unit, [ours, theirs]: [Vec<f64>; 2]| {
        let (ours, spread) = (Spread::of(ours), Spread::of(theirs));
        Row {
            name: name.into(),
            unit,
            ours,
            ratio: ours.median / spread.median,
            peer: PeerSide { name: peer.into(), spread },
            target: if is_there { Target::AtLeast(target) } else { Target::Any },
        }
    };
    Ok([row(names.0, "K/s", walls), row(names.1, "K/CPU s", cpus)])
}

fn redis(
    is_wanted: &dyn Fn(&'static str, &'static str) -> bool,
    extent: Extent,
    rows: &mut Vec<Row>,
) -> Result<()> {
    let ours = Server::ours("--redis", &["--memory", "256M"])?;
    let peer = Server::redis(&["--appendonly", "no"])?;
    for server in [Some(&ours), peer.as_ref()].into_iter().flatten() {
        server.fill(extent.served)?;
    }
    for (wall, cpu, test, in_flight, target) in REDIS {
        if !is_wanted(wall, cpu) {
            continue;
        }
        let requests = if in_flight == 1 { extent.requests } else { extent.pipelined };
        let how = (extent.served, requests, in_flight);
        let load = |server: &Server| server.redis_benchmark(test, CONNECTIONS, how);
        let theirs = peer.as_ref().map(|server| -> Load<'_> { Box::new(move || load(server)) });
        let name = if theirs.is_some() { "redis-server" } else { REDIS_MISSING };
        rows.extend(both((wall, cpu), target, name, extent, Box::new(|| load(&ours)), theirs)?);
    }
    Ok(())
}

/// SETs that are on the disk before they are answered.
fn logged(extent: Extent) -> Result<[Row; 2]> {
    let (own, other) = (TemporaryFile::folder("store-log")?, TemporaryFile::folder("redis-log")?);
    let ours = ["--memory", "256M", "--dir", own.text()?, "--fsync", "always"];
    let ours = Server::ours("--redis", &ours)?;
    let logs = ["--appendonly", "yes", "--appendfsync", "always", "--dir", other.text()?];
    let peer = Server::redis(&logs)?;
    let how = (extent.served, extent.logged, 1);
    let load = |server: &Server| server.redis_benchmark("set", CLIENTS, how);
    let theirs = peer.as_ref().map(|server| -> Load<'_> { Box::new(|| load(server)) });
    let name = if theirs.is_some() { "redis-server, appendfsync always" } else { REDIS_MISSING };
    both(LOGGED, 1.5, name, extent, Box::new(|| load(&ours)), theirs)
}

/// Resident bytes that a key of 16 bytes with a value of 64 adds.
fn resident(extent: Extent) -> Result<Row> {
    let of = |server: &Server| -> Result<Spread> {
        let before = server.resident()?;
        server.fill(extent.resident)?;
        Ok(Spread::of(vec![(server.resident()? - before) / extent.resident as f64]))
    };
    let ours = of(&Server::ours("--redis", &["--memory", "1G"])?)?;
    let peer = Server::redis(&["--appendonly", "no"])?;
    let spread = peer.as_ref().map_or(Ok(Spread::of(vec![f64::NAN])), of)?;
    Ok(Row {
        name: RESIDENT.into(),
        unit: "bytes",
        ours,
        ratio: ours.median / spread.median,
        peer: PeerSide {
            name: if peer.is_some() { "redis-server" } else { REDIS_MISSING }.into(),
            spread,
        },
        target: if peer.is_some() { Target::AtMost(0.8) } else { Target::Any },
    })
}
