//! Selective repeat as others have published it, as models of one connection: what the card's own
//! recovery is compared with ([`schemes`](crate::schemes)).
//!
//! - **IRN** (SIGCOMM 2018, §3): each packet is acknowledged; one out of order by a NACK that names
//!   it. A packet is lost if one sent later was named. Within one recovery each lost packet is sent
//!   again once; what is lost again waits for a time-out.
//! - **SRNIC** (NSDI 2023, §4.4.2) does the same with bitmaps in host memory: what concerns packets
//!   out of order goes through a queue to software and back, which takes time. The responder leaves
//!   its recovery when software's expected PSN falls into the range of the latest packets in
//!   sequence (Fig. 8); otherwise the exit fails, since newer packets are still on their way to
//!   software.
//!
//! In worlds, models are hosts of a network ([`crate::flows`]). A model is no card: messages have
//! no headers but their bytes, and hosts take no time. Both follow the papers' text, which leaves
//! open how SRNIC's software finds losses: here as IRN does.

pub(crate) mod receiver;
pub(crate) mod sender;

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use crate::dice::Dice;
use crate::link_faults::{LinkOptions, OUTER_BYTES};
use receiver::{Receiver, Reply};
use sender::Sender;
pub use sender::Waits;

/// Picoseconds of a nanosecond.
const PS: u64 = 1000;
/// The bytes of a packet's transport headers: base header, WRITE's address in each packet, ICRC.
const HEADERS: u64 = 12 + 16 + 4;
/// What SRNIC's WRITEs have beyond that (§4.4.1: 58 bytes become 78).
const SRNIC_HEADERS: u64 = 4;
/// The bytes of an acknowledge: base header, its own, IRN's number of the packet, ICRC.
pub(crate) const ACKNOWLEDGE: u64 = 12 + 4 + 4 + 4;

/// A published scheme of selective repeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selective {
    /// How long it takes from the card to software, and from software to the card; `None` if the
    /// card has the bitmaps itself.
    pub control_queue: Option<Duration>,
}

/// IRN.
pub const IRN: Selective = Selective { control_queue: None };
/// SRNIC, whose software hears of packets after a microsecond: about a round trip of PCIe.
pub const SRNIC: Selective = Selective { control_queue: Some(Duration::from_micros(1)) };

/// What a model carries, and over which network.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The link, in each direction.
    pub link: LinkOptions,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// How many packets.
    pub packets: u64,
    /// How many may be outstanding.
    pub window: u64,
    /// The probability that a packet or an acknowledge is lost.
    pub loss: f64,
    /// By path, how much longer it is than the link: one entry at least.
    pub paths: Vec<Duration>,
    /// How many packets take a path in a row.
    pub run: u64,
    /// The packet whose first copy is lost in any case.
    pub drop: Option<u64>,
    /// The seed of chance.
    pub seed: u64,
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// When the sender knew that everything had arrived.
    pub took: Duration,
    /// Packets and acknowledges that were lost.
    pub lost: u64,
    /// Packets that were sent again.
    pub retransmitted: u64,
    /// Time-outs.
    pub timeouts: u64,
    /// Exits from recovery that failed, as there was a newer gap, or software's news were old.
    pub failed_exits: u64,
}

/// Something that happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// The sender's link is free.
    Free,
    /// A packet has arrived.
    Arrived(u64),
    /// The receiver's software takes note of a packet out of order.
    Noted(u64),
    /// The receiver's card takes note of software's expected packet.
    Expected(u64),
    /// The sender's card has an acknowledge.
    Replied(Reply),
    /// The sender's software has it.
    Taken(Reply),
    /// The sender's timer, armed so many times before.
    TimedOut(u64),
}

/// A run of a model.
struct Run<'a> {
    scheme: Selective,
    terms: &'a Terms,
    /// In picoseconds.
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// How many events there have been: those of one time come in the order of their making.
    made: u64,
    busy: bool,
    sender: Sender,
    receiver: Receiver,
    dice: Dice,
    outcome: Outcome,
}

impl Selective {
    /// The bytes of a packet's transport headers and ICRC.
    pub(crate) fn headers(self) -> u64 {
        HEADERS + if self.control_queue.is_some() { SRNIC_HEADERS } else { 0 }
    }

    /// Carries the packets. The result depends only on the arguments.
    ///
    /// # Panics
    /// If `terms.paths` is empty, or `terms.run` is zero.
    pub fn run(self, terms: &Terms) -> Outcome {
        assert!(!terms.paths.is_empty() && terms.run > 0, "a path has packets");
        let mut run = Run {
            scheme: self,
            terms,
            now: 0,
            events: BinaryHeap::new(),
            made: 0,
            busy: false,
            sender: Sender::new(terms.packets, terms.window, Waits::default()),
            receiver: Receiver::new(self.control_queue.is_some()),
            dice: Dice::new(terms.seed),
            outcome: Outcome::default(),
        };
        run.send();
        while !run.sender.is_done() {
            let Some(Reverse((at, _, event))) = run.events.pop() else {
                unreachable!("a sender that waits has a timer");
            };
            run.now = at;
            run.handle(event);
        }
        let took = Duration::from_nanos(run.now / PS);
        let (retransmitted, timeouts) = (run.sender.retransmitted, run.sender.timeouts);
        Outcome { took, retransmitted, timeouts, ..run.outcome }
    }
}

impl Run<'_> {
    fn handle(&mut self, event: Event) {
        let queue = self.scheme.control_queue.map(picoseconds);
        match event {
            Event::Free => {
                self.busy = false;
                self.send();
            }
            Event::Arrived(psn) => {
                let (reply, metadata) = self.receiver.arrived(psn);
                self.reply(reply);
                if metadata {
                    self.after(queue.unwrap_or(0), Event::Noted(psn));
                }
            }
            Event::Noted(psn) => {
                if let Some(expected) = self.receiver.noted(psn) {
                    self.after(queue.unwrap_or(0), Event::Expected(expected));
                }
            }
            Event::Expected(psn) => {
                let (reply, failed) = self.receiver.updated(psn);
                self.outcome.failed_exits += u64::from(failed);
                self.reply(reply);
            }
            // The card takes what is in sequence itself.
            Event::Replied(reply) => match queue {
                Some(queue) if reply.named.is_some() || self.sender.is_recovering() => {
                    self.after(2 * queue, Event::Taken(reply));
                }
                _ => self.take(reply),
            },
            Event::Taken(reply) => self.take(reply),
            Event::TimedOut(armed) => {
                if self.sender.timed_out(armed) {
                    self.arm();
                    self.send();
                }
            }
        }
    }

    fn take(&mut self, reply: Reply) {
        if self.sender.take(reply) {
            self.arm();
        }
        self.send();
    }

    fn arm(&mut self) {
        let (wait, armed) = self.sender.arm();
        self.after(picoseconds(wait), Event::TimedOut(armed));
    }

    /// Sends the next packet, if the link is free and one may leave.
    fn send(&mut self) {
        if self.busy {
            return;
        }
        let waits = self.sender.is_waiting();
        let Some((psn, again)) = self.sender.next() else { return };
        if !waits {
            self.arm();
        }
        let bytes = u64::from(self.terms.mtu) + self.scheme.headers() + OUTER_BYTES;
        let lost = self.dice.chance(self.terms.loss) || self.terms.drop == Some(psn) && !again;
        self.outcome.lost += u64::from(lost);
        // As on the network of the cards, a lost packet takes its time of the link.
        let takes = self.takes(bytes);
        if !lost {
            let way = psn / self.terms.run % self.terms.paths.len() as u64;
            let longer = picoseconds(self.terms.paths[way as usize]);
            let latency = picoseconds(self.terms.link.latency) + longer;
            self.after(takes + latency, Event::Arrived(psn));
        }
        self.busy = true;
        self.after(takes, Event::Free);
    }

    /// Acknowledges leave as they are made: the link back has room for all of them.
    fn reply(&mut self, reply: Option<Reply>) {
        let Some(reply) = reply else { return };
        if self.dice.chance(self.terms.loss) {
            self.outcome.lost += 1;
            return;
        }
        let takes = self.takes(ACKNOWLEDGE + OUTER_BYTES);
        self.after(takes + picoseconds(self.terms.link.latency), Event::Replied(reply));
    }

    fn takes(&self, bytes: u64) -> u64 {
        bytes * 8 * (1_000_000_000_000 / 1000) / (self.terms.link.bits_per_second / 1000).max(1)
    }

    fn after(&mut self, wait: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((self.now + wait, self.made, event)));
    }
}

fn picoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64 * PS
}
