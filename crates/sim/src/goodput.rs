//! The share of a link's rate that one connection uses at a given loss: go-back-N, one queue pair,
//! WRITEs of 1 MiB.
//!
//! The link carries 100 Gb/s in each direction with a latency of 1 µs; a packet's IP, UDP and
//! Ethernet headers, preamble and gap count. The path MTU is 4096, the window the card's default
//! of 64 packets, and the timeout 131 µs (code 5). Eight WRITEs are outstanding. Each packet,
//! acknowledges included, is lost with the same probability.

use core::fmt;
use core::time::Duration;

use remora_nic::Time;
use remora_nic::qp::Mtu;

use crate::endpoint::ConnectOptions;
use crate::faults::Faults;
use crate::link_faults::LinkOptions;
use crate::pair::{A, B, Pair, PairOptions};

/// Bytes of one WRITE.
pub const MESSAGE: u64 = 1 << 20;

/// The number of WRITEs.
pub(crate) const MESSAGES: u64 = 128;

/// The number of WRITEs that are outstanding.
const DEPTH: u64 = 8;

/// The loss probabilities of the table.
pub const LOSSES: [f64; 4] = [0.0, 0.0001, 0.001, 0.01];

/// The result of one measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goodput {
    /// The probability that a packet is lost.
    pub loss: f64,
    /// The rate of the application's data, in bits per second.
    pub bits_per_second: f64,
    /// That rate as a fraction of the link's rate.
    pub fraction: f64,
    /// Packets that the network lost.
    pub lost: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Packets of payload, without those that were sent again.
    pub packets: u64,
    /// Timeouts of the requester.
    pub timeouts: u64,
}

/// Measures one connection. The result depends only on the arguments.
pub fn goodput(loss: f64, seed: u64) -> Goodput {
    let connect = ConnectOptions { mtu: Mtu::B4096, ..ConnectOptions::default() };
    goodput_of(&connect, Faults { loss, ..Faults::default() }, seed)
}

/// As [`goodput()`], for a connection with these attributes (but that time-out) and a network with
/// these faults.
pub fn goodput_of(connect: &ConnectOptions, faults: Faults, seed: u64) -> Goodput {
    let link = LinkOptions::default();
    let pair = PairOptions { connect: *connect, link, ..PairOptions::default() };
    goodput_in(&pair, faults, seed, |_| ())
}

/// As [`goodput_of()`], between hosts with these options and on a network that `prepare` has
/// changed. The regions have the length that the messages need.
pub fn goodput_in(
    options: &PairOptions,
    faults: Faults,
    seed: u64,
    prepare: impl FnOnce(&mut Pair),
) -> Goodput {
    let (link, loss) = (options.link, faults.loss);
    let options = PairOptions {
        region: DEPTH * MESSAGE,
        connect: ConnectOptions { timeout: 5, ..options.connect },
        ..options.clone()
    };
    let mut pair = Pair::seeded(&options, seed);
    pair.world.network.trace = None;
    pair.world.network.faults = faults;
    prepare(&mut pair);
    let start = pair.world.now;
    let end = transfer(&mut pair);
    let seconds = end.since(start).as_secs_f64();
    let bits_per_second = (MESSAGES * MESSAGE * 8) as f64 / seconds;
    let counters = pair.world.hosts[A].nic.counters();
    Goodput {
        loss,
        bits_per_second,
        fraction: bits_per_second / link.bits_per_second as f64,
        lost: pair.world.network.tally.lost,
        retransmitted: counters.tx_retransmitted,
        packets: MESSAGES * MESSAGE / u64::from(options.connect.mtu.bytes()),
        timeouts: counters.timeouts,
    }
}

/// Keeps `DEPTH` WRITEs outstanding until `MESSAGES` have completed. Returns the time of the last
/// completion.
fn transfer(pair: &mut Pair) -> Time {
    let (mut posted, mut done) = (0, 0);
    let data: Vec<u8> = pair.fill(A, 0, DEPTH * MESSAGE);
    while done < MESSAGES {
        while posted < MESSAGES && posted < done + DEPTH {
            let at = posted % DEPTH * MESSAGE;
            pair.write(A, at, at, MESSAGE as u32);
            posted += 1;
        }
        pair.world.step();
        for completion in pair.sent(A) {
            let ok = completion.status == remora_nic::queue::Status::Success;
            assert!(ok, "a connection with seven retries failed: {completion:?}");
            done += 1;
        }
    }
    let end = pair.world.now;
    assert!(pair.world.run(Duration::from_secs(1)), "the world does not come to rest");
    assert!(pair.bytes(B, 0, DEPTH * MESSAGE) == data, "the bytes differ");
    end
}

impl fmt::Display for Goodput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss {:5.2} %   goodput {:6.2} Gb/s   {:.4} of the link   {:5} lost  {:6} sent again  \
             {:4} timeouts",
            self.loss * 100.0,
            self.bits_per_second / 1e9,
            self.fraction,
            self.lost,
            self.retransmitted,
            self.timeouts
        )
    }
}
