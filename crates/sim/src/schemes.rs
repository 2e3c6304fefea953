//! Schemes of loss recovery beside each other: at a given loss, over paths of unequal delay, and
//! when a last packet is lost. [`goodput`](mod@crate::goodput) has the link and the messages. The
//! card's own schemes run on cards; others' are models ([`crate::selective`]).

use core::time::Duration;

use remora_nic::Config;
use remora_nic::qp::{Congestion, Mtu};
use remora_nic::wire::Dialect;

use crate::endpoint::ConnectOptions;
use crate::faults::{Fate, Faults, Rule};
use crate::goodput::{Goodput, MESSAGE, MESSAGES, goodput_in};
use crate::link_faults::LinkOptions;
use crate::packet::Seen;
use crate::pair::{A, Pair, PairOptions};
use crate::selective::{self, Selective, Terms};

/// A scheme of loss recovery.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    /// Its name.
    pub name: &'static str,
    /// Who follows it.
    pub by: By,
}

/// Who follows a scheme.
#[derive(Clone, Copy, Debug)]
pub enum By {
    /// Cards.
    Cards {
        /// How their queue pairs are connected.
        connect: fn() -> ConnectOptions,
        /// Packets name their path; otherwise the network spreads them.
        names_paths: bool,
    },
    /// A model.
    Model(Selective),
}

/// The lossy dialect (docs/lossy.md).
pub const LOSSY: Scheme = Scheme {
    name: "lossy dialect",
    by: By::Cards {
        connect: || ConnectOptions { dialect: Dialect::LOSSY, ..fixed() },
        names_paths: true,
    },
};

/// The standard dialect: what is behind a lost packet is sent again with it.
pub const GO_BACK_N: Scheme = Scheme {
    name: "standard dialect (go-back-N)",
    by: By::Cards { connect: fixed, names_paths: false },
};

/// SRNIC as published.
pub const SRNIC: Scheme = Scheme { name: "SRNIC (model)", by: By::Model(selective::SRNIC) };

/// IRN.
pub const IRN: Scheme = Scheme { name: "IRN (model)", by: By::Model(selective::IRN) };

/// All schemes, the card's own first.
pub const SCHEMES: [Scheme; 4] = [LOSSY, GO_BACK_N, SRNIC, IRN];

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
    match scheme.by {
        By::Cards { connect, .. } => {
            let connect = ConnectOptions { mtu, ..connect() };
            let pair = PairOptions { connect, ..PairOptions::default() };
            goodput_in(&pair, Faults { loss, ..Faults::default() }, seed, |_| ())
        }
        By::Model(model) => modelled(model, &Terms { loss, ..terms(mtu, 1, seed) }),
    }
}

/// What a model carries: as much as the cards, over so many paths, with their window.
fn terms(mtu: Mtu, paths: u8, seed: u64) -> Terms {
    Terms {
        link: LinkOptions::default(),
        mtu: mtu.bytes(),
        packets: MESSAGES * MESSAGE / u64::from(mtu.bytes()),
        window: Config::default().window_packets.into(),
        loss: 0.0,
        paths: (0..paths).map(|path| delay(path, paths)).collect(),
        run: (RUN_BYTES / mtu.bytes()).into(),
        drop: None,
        seed,
    }
}

fn modelled(model: Selective, terms: &Terms) -> Goodput {
    let outcome = model.run(terms);
    let bytes = terms.packets * u64::from(terms.mtu);
    let bits_per_second = (bytes * 8) as f64 / outcome.took.as_secs_f64();
    Goodput {
        loss: terms.loss,
        bits_per_second,
        fraction: bits_per_second / terms.link.bits_per_second as f64,
        lost: outcome.lost,
        retransmitted: outcome.retransmitted,
        packets: terms.packets,
        timeouts: outcome.timeouts,
    }
}

/// How much longer a path is than the first of so many.
fn delay(path: u8, paths: u8) -> Duration {
    SPREAD * u32::from(path) / u32::from(paths - 1).max(1)
}

/// A scheme's goodput over so many paths (of [`PATHS`]) whose delays go up to [`SPREAD`] in equal
/// steps, each of which keeps the order of its packets and loses none. What is sent again then is
/// sent for nothing.
pub fn spread(scheme: &Scheme, mtu: Mtu, paths: u8, seed: u64) -> Goodput {
    let (connect, names_paths) = match scheme.by {
        By::Cards { connect, names_paths } => (connect(), names_paths),
        By::Model(model) => return modelled(model, &terms(mtu, paths, seed)),
    };
    // Of two PSNs neither is larger for good: half of the worlds begin where they wrap round.
    let psns = (if seed.is_multiple_of(2) { 0xFF_F000 } else { 100 }, 5000);
    let connect = ConnectOptions { mtu, ..connect };
    let config: fn(&mut Config) = match paths {
        8 => |config| config.paths = 8,
        64 => |config| config.paths = 64,
        _ => |_| (),
    };
    let pair = PairOptions { connect, config, psns, ..PairOptions::default() };
    let path_of = move |seen: &Seen| match seen.ext.leth {
        Some(leth) if names_paths => u32::from(leth.path),
        _ => seen.bth.psn.value() / (RUN_BYTES / mtu.bytes()) % u32::from(paths),
    };
    goodput_in(&pair, Faults::default(), seed, |pair| {
        for path in 1..paths {
            let takes = move |seen: &Seen| {
                seen.from == A && seen.payload > 0 && path_of(seen) == u32::from(path)
            };
            pair.rule(Rule::all(Fate::Delay(delay(path, paths)), takes));
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
    let connect = match scheme.by {
        By::Cards { connect, .. } => ConnectOptions { mtu, ..connect() },
        By::Model(model) => return modelled_tail(model, most, &terms(mtu, 1, seed)),
    };
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

fn modelled_tail(model: Selective, most: usize, terms: &Terms) -> TailLoss {
    let time = |packets: u64, drop| model.run(&Terms { packets, drop, ..terms.clone() }).took;
    let both = |packets: u64| (time(packets, None), time(packets, Some(packets - 1)));
    TailLoss { times: (1..=most as u64).map(both).collect(), round_trip: time(1, None) }
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
