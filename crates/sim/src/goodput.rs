//! How much of a link a connection uses at a given loss: go-back-N, one queue pair, 1 MiB WRITEs.
//!
//! The link carries 100 Gb/s one way with a latency of 1 µs; a packet takes its IP, UDP and
//! Ethernet headers, preamble and gap there. Path MTU 4096, the card's default window of 64
//! packets, eight WRITEs outstanding, a timeout of 131 µs (code 5). All that is lost is lost by
//! chance, each packet with the same probability, acknowledges too.

use core::fmt;
use core::time::Duration;

use remora_nic::Time;
use remora_nic::qp::Mtu;

use crate::endpoint::ConnectOptions;
use crate::faults::Faults;
use crate::network::LinkOptions;
use crate::pair::{A, B, Pair, PairOptions};

/// Bytes of one WRITE.
pub const MESSAGE: u64 = 1 << 20;

/// WRITEs in all.
const MESSAGES: u64 = 128;

/// WRITEs posted at a time.
const DEPTH: u64 = 8;

/// The losses of the table.
pub const LOSSES: [f64; 4] = [0.0, 0.0001, 0.001, 0.01];

/// What a connection achieved.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Goodput {
    /// The probability that a packet is lost.
    pub loss: f64,
    /// Bytes of the application a second, in bits.
    pub bits_per_second: f64,
    /// The same as a fraction of the link's rate.
    pub fraction: f64,
    /// Packets the network lost.
    pub lost: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Times the timer had to run out.
    pub timeouts: u64,
}

/// Measures it, exact for its seed.
pub fn goodput(loss: f64, seed: u64) -> Goodput {
    let link = LinkOptions::default();
    let options = PairOptions {
        link,
        region: DEPTH * MESSAGE,
        connect: ConnectOptions { mtu: Mtu::B4096, timeout: 5, ..ConnectOptions::default() },
        ..PairOptions::default()
    };
    let mut pair = Pair::seeded(&options, seed);
    pair.world.network.trace = None;
    pair.world.network.faults = Faults { loss, ..Faults::default() };
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
        timeouts: counters.timeouts,
    }
}

/// Keeps `DEPTH` WRITEs under way until `MESSAGES` are done; returns when the last was.
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
            assert!(ok, "a connection of seven retries failed: {completion:?}");
            done += 1;
        }
    }
    let end = pair.world.now;
    assert!(pair.world.run(Duration::from_secs(1)), "packets without end");
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
