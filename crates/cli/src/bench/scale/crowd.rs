//! Many clients at once at one node, and an honest one behind a crowd that is refused. The node and
//! its clients are cards of this process.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use remora::connection::token::Token;
use remora::{Device, DeviceOptions};
use remora_command::node::address::{NodeAddress, RegionAddress};
use remora_command::node::client::RemoteRegion;
use remora_command::node::server::Node;
use remora_command::node::start::NodeOptions;

use super::hostile::Hostile;
use crate::thread::spawn_scoped;

/// How long a client waits for the node.
const PATIENCE: Duration = Duration::from_secs(30);
/// The cards that the clients share.
const CARDS: usize = 20;
const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// Seconds until the last of `count` clients that come at once is served.
pub(super) fn at_once(count: usize) -> Result<f64> {
    let cards = (0..CARDS).map(|_| card()).collect::<Result<Vec<_>>>()?;
    served(|node, token| {
        thread::scope(|scope| {
            let begun = Instant::now();
            let clients = cards.iter().cycle().take(count).map(|card| {
                let client = move || -> Result<(f64, RemoteRegion)> {
                    let region = open(card, node, token)?;
                    Ok((begun.elapsed().as_secs_f64(), region))
                };
                spawn_scoped(scope, "client", client)
            });
            let clients = clients.collect::<Result<Vec<_>, _>>()?;
            // Each keeps its region until all have theirs.
            let ends = clients
                .into_iter()
                .map(|client| client.join().map_err(|_| anyhow!("a client has panicked"))?);
            let opened = ends.collect::<Result<Vec<_>>>()?;
            Ok(opened.iter().map(|(seconds, _)| *seconds).fold(0.0, f64::max))
        })
    })
}

/// Seconds until a client is served, right after `refused` requests with a wrong token.
pub(super) fn behind(refused: u32) -> Result<f64> {
    let card = card()?;
    served(|node, token| {
        if refused > 0 {
            refuse(node, refused)?;
        }
        let begun = Instant::now();
        let _region = open(&card, node, token)?;
        Ok(begun.elapsed().as_secs_f64())
    })
}

/// Has a node refuse so many requests; some may be lost on their way.
fn refuse(node: NodeAddress, count: u32) -> Result<()> {
    let mut hostile = Hostile::new(own_address(), node, None)?;
    let mut answered = 0;
    while hostile.asked() < count {
        (0..64).try_for_each(|_| hostile.ask())?;
        answered += hostile.answers(64);
    }
    ensure!(answered > count as usize / 2, "only {answered} of {count} requests were refused");
    Ok(())
}

/// What `clients` of a node with the region `m` measure.
fn served(clients: impl FnOnce(NodeAddress, Option<Token>) -> Result<f64>) -> Result<f64> {
    let card = card()?;
    let token = Some(TOKEN.parse().context("a token")?);
    let regions = vec!["m=1M".parse().map_err(|error| anyhow!("a region: {error}"))?];
    let options = NodeOptions { token, regions, ..NodeOptions::default() };
    let (node, stop) = (Node::start(&card, &options)?, AtomicBool::new(false));
    thread::scope(|scope| {
        let serving = spawn_scoped(scope, "node", || node.serve(&stop))?;
        let measured = clients(node.address(), token);
        stop.store(true, Ordering::Relaxed);
        serving.join().map_err(|_| anyhow!("the node has panicked"))??;
        measured
    })
}

fn card() -> Result<Device> {
    Ok(DeviceOptions::new().embedded().open()?)
}

fn open(card: &Device, node: NodeAddress, token: Option<Token>) -> Result<RemoteRegion> {
    let address = RegionAddress { node, name: "m".into() };
    Ok(RemoteRegion::open(card, &address, token, PATIENCE)?)
}

/// An address on loopback that no card takes by itself.
fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 + NEXT.fetch_add(1, Ordering::Relaxed) % 128, high, low.clamp(1, 254))
}
