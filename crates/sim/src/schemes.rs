//! Schemes of loss recovery beside each other: at a given loss, over paths of unequal delay, and
//! when a last packet is lost. [`goodput`](mod@crate::goodput) has the link and the messages.

use core::time::Duration;

use remora_nic::Config;
use remora_nic::qp::{Congestion, Mtu};
use remora_nic::wire::Dialect;

use crate::endpoint::ConnectOptions;
use crate::faults::{Fate, Faults, Rule};
use crate::goodput::{Goodput, goodput_in};
use crate::packet::Seen;
use crate::pair::{A, Pair, PairOptions};

/// A scheme of loss recovery.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name.
    pub name: &'static str,
    /// How queue pairs are connected that follow it.
    pub connect: fn() -> ConnectOptions,
    /// Its packets name their path; otherwise the network spreads them.
    pub names_paths: bool,
}

/// The lossy dialect (docs/lossy.md).
pub const LOSSY: Scheme = Scheme {
    name: "lossy dialect",
    connect: || ConnectOptions { dialect: Dialect::LOSSY, ..fixed() },
    names_paths: true,
};

/// The standard dialect: what is behind a lost packet is sent again with it.
pub const GO_BACK_N: Scheme =
    Scheme { name: "standard dialect (go-back-N)", connect: fixed, names_paths: false };

/// All schemes, the card's own first.
pub const SCHEMES: [Scheme; 2] = [LOSSY, GO_BACK_N];

/// With a window that nothing shrinks, so that only the recovery counts (SRNIC §6.3 measures so).
fn fixed() -> ConnectOptions {
    ConnectOptions { congestion: Congestion::Fixed, ..ConnectOptions::default() }
}

/// The numbers of paths over which [`spread`] can spread packets.
pub const PATHS: [u8; 3] = [1, 8, 64];
/// How much longer than the first path the last one is: four round trips of the first.
pub const SPREAD: Duration = Duration::from_micros(8);
/// Packets that take one path in a row where the network spreads them, as many as the card's.
const RUN_BYTES: u32 = 16 << 10;

/// A scheme's goodput at a loss, in packets of `mtu`.
pub fn at_loss(scheme: &Scheme, mtu: Mtu, loss: f64, seed: u64) -> Goodput {
    let connect = ConnectOptions { mtu, ..(scheme.connect)() };
    let pair = PairOptions { connect, ..PairOptions::default() };
    goodput_in(&pair, Faults { loss, ..Faults::default() }, seed, |_| ())
}

/// A scheme's goodput over so many paths (of [`PATHS`]) whose delays go up to [`SPREAD`] in equal
/// steps, each of which keeps the order of its packets and loses none. What is sent again then is
/// sent for nothing.
pub fn spread(scheme: &Scheme, mtu: Mtu, paths: u8, seed: u64) -> Goodput {
    let connect = ConnectOptions { mtu, ..(scheme.connect)() };
    let config: fn(&mut Config) = match paths {
        8 => |config| config.paths = 8,
        64 => |config| config.paths = 64,
        _ => |_| (),
    };
    let pair = PairOptions { connect, config, ..PairOptions::default() };
    let names_paths = scheme.names_paths;
    let path_of = move |seen: &Seen| match seen.ext.leth {
        Some(leth) if names_paths => u32::from(leth.path),
        _ => seen.bth.psn.value() / (RUN_BYTES / mtu.bytes()) % u32::from(paths),
    };
    goodput_in(&pair, Faults::default(), seed, |pair| {
        for path in 1..u32::from(paths) {
            let delay = SPREAD * path / u32::from(paths - 1);
            let takes =
                move |seen: &Seen| seen.from == A && seen.payload > 0 && path_of(seen) == path;
            pair.rule(Rule::all(Fate::Delay(delay), takes));
        }
    })
}

/// How long WRITEs take whose last packet is lost, beside those of which none is.
#[derive(Clone, Debug)]
pub struct TailLoss {
    /// The time without loss and that with, of WRITEs of 1, 2, 3… packets.
    pub times: Vec<(Duration, Duration)>,
    /// A round trip of a WRITE of one packet.
    pub round_trip: Duration,
}

/// Measures WRITEs of up to `most` packets, each of which loses its last packet once.
pub fn tail_loss(scheme: &Scheme, most: usize, seed: u64) -> TailLoss {
    let mtu = Mtu::B1024;
    let connect = ConnectOptions { mtu, ..(scheme.connect)() };
    let mut pair = Pair::seeded(&PairOptions { connect, ..PairOptions::default() }, seed);
    // Round trips are known before.
    for _ in 0..20 {
        write(&mut pair, mtu.bytes());
    }
    let round_trip = write(&mut pair, mtu.bytes());
    let mut time = |packets: usize| {
        let len = packets as u32 * mtu.bytes();
        let quiet = write(&mut pair, len);
        pair.rule(Rule::nth(packets, Fate::Drop, |seen| seen.from == A && seen.payload > 0));
        (quiet, write(&mut pair, len))
    };
    let times = (1..=most).map(&mut time).collect();
    TailLoss { times, round_trip }
}

/// Writes `len` bytes; returns the time from the post to the completion.
fn write(pair: &mut Pair, len: u32) -> Duration {
    let start = pair.world.now;
    pair.write(A, 0, 0, len);
    while pair.sent(A).is_empty() {
        pair.world.step();
    }
    let took = pair.world.now.since(start);
    pair.run();
    took
}
