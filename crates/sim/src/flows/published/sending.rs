//! A flow at its source: what may leave, and when.

use remora_nic::Psn;
use remora_nic::qp::{Dcqcn, Dctcp, Window};

use crate::flows::transport::Published;
use crate::flows::tuning::Tuned;
use crate::net::Ps;
use crate::net::time::{NEVER, from_card, span, to_card};
use crate::selective::receiver::Reply;
use crate::selective::sender::Sender;

/// What decides how many packets are outstanding: the policies that the card has, too.
#[derive(Debug)]
enum Control {
    /// A window by the share of marked packets.
    Window { window: Window, dctcp: Dctcp },
    /// A rate.
    Rate(Box<Dcqcn>),
}

/// The limits of all flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most packets outstanding.
    pub(super) packets: u16,
    /// The most bytes of payload in a packet.
    pub(super) mtu: u32,
    /// A flow that has heard nothing for so long fails.
    pub(super) patience: Ps,
    /// How often it waits for an acknowledge in vain before that, at least.
    pub(super) retries: u64,
}

/// What a flow has to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// This packet.
    Packet(u64),
    /// Nothing before this moment.
    Later(Ps),
    /// Nothing until something is heard.
    Nothing,
}

/// A flow at its source.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) sender: Sender,
    control: Control,
    limits: Limits,
    /// It stands in its host's line.
    pub(super) in_line: bool,
    /// All but its last acknowledge is forgotten: it has ended, or failed.
    pub(super) has_ended: bool,
    /// When nothing has been heard for too long, and which arming of the sender's timer that is.
    deadline: (Ps, u64),
    /// The moment of the timer's next event.
    timer: Ps,
    /// Since when it waits and has heard nothing, and how often its time has run out since.
    silence: (Ps, u32),
}

impl Sending {
    /// A flow of so many packets from a host whose cable carries `bits` per second.
    pub(super) fn new(
        (scheme, tuned): (Published, &Tuned),
        packets: u64,
        limits: Limits,
        bits: u64,
    ) -> Sending {
        let Tuned { policies, waits, .. } = *tuned;
        let control = match scheme {
            Published::Irn => Control::Rate(Box::new(Dcqcn::new(bits, policies.dcqcn))),
            Published::Srnic => {
                let dctcp = Dctcp::new(Psn::new(0), policies.dctcp);
                Control::Window { window: Window::new(limits.packets), dctcp }
            }
        };
        Sending {
            sender: Sender::new(packets, limits.packets.into(), waits),
            control,
            limits,
            in_line: false,
            has_ended: false,
            deadline: (NEVER, 0),
            timer: NEVER,
            silence: (0, 0),
        }
    }

    /// The next packet to leave at `now`.
    pub(super) fn next(&mut self, now: Ps) -> Next {
        if self.has_ended {
            return Next::Nothing;
        }
        if let Control::Rate(rate) = &mut self.control {
            let opens = from_card(rate.opens());
            if opens > now {
                return Next::Later(opens);
            }
            // Only so does the rate learn that time has passed.
            rate.turn(self.limits.mtu, to_card(now));
        }
        match self.sender.next() {
            Some((psn, _)) => Next::Packet(psn),
            None => Next::Nothing,
        }
    }

    /// Notes that a packet with so much payload leaves.
    pub(super) fn sent(&mut self, now: Ps, payload: u64) {
        if let Control::Rate(rate) = &mut self.control {
            rate.sent(1, payload, to_card(now));
        }
    }

    /// Notes that a packet has arrived at the peer, and whether it was marked.
    pub(super) fn note_mark(&mut self, marked: bool) {
        let high = psn(self.sender.high());
        if let Control::Window { window, dctcp } = &mut self.control {
            dctcp.received(window, (1, marked.into()), high);
        }
    }

    /// Takes a congestion notification.
    pub(super) fn notified(&mut self, now: Ps) {
        if let Control::Rate(rate) = &mut self.control {
            rate.notified(to_card(now));
        }
    }

    /// Takes an acknowledge. Returns the moment of an event of the timer, if there is to be one.
    pub(super) fn take(&mut self, now: Ps, reply: Reply) -> Option<Ps> {
        self.silence = (now, 0);
        let (una, was_recovering) = (self.sender.una(), self.sender.is_recovering());
        let begins_anew = self.sender.take(reply);
        let lost = self.sender.is_recovering() && !was_recovering;
        if let Control::Window { window, dctcp } = &mut self.control {
            let (una, acked) = (self.sender.una(), self.sender.una() - una);
            let high = psn(self.sender.high());
            if acked > 0 {
                dctcp.acknowledged(psn(una), high);
                window.acknowledged(acked as u32, psn(una), self.limits.packets);
            }
            if lost {
                window.shrink(high);
            }
            self.sender.set_window(window.size().into());
        }
        if begins_anew { self.arm(now) } else { None }
    }

    /// Begins to wait for an acknowledge. Returns as [`Sending::take`] does.
    pub(super) fn wait(&mut self, now: Ps) -> Option<Ps> {
        self.silence = (now, 0);
        self.arm(now)
    }

    /// Has it waited as often and as long as a card does?
    pub(super) fn gives_up(&self, now: Ps) -> bool {
        let (since, times) = self.silence;
        u64::from(times) > self.limits.retries && now - since >= self.limits.patience
    }

    /// Begins the wait for an acknowledge anew. Returns as [`Sending::take`] does.
    fn arm(&mut self, now: Ps) -> Option<Ps> {
        let (wait, armed) = self.sender.arm();
        self.deadline = (now + span(wait), armed);
        self.set_timer()
    }

    fn set_timer(&mut self) -> Option<Ps> {
        (self.deadline.0 < self.timer).then(|| {
            self.timer = self.deadline.0;
            self.timer
        })
    }

    /// An event of the timer. Returns the moment of another, if there is to be one. The caller lets
    /// the flow send.
    pub(super) fn expires(&mut self, now: Ps) -> Option<Ps> {
        if now != self.timer {
            return None;
        }
        self.timer = NEVER;
        if now < self.deadline.0 {
            return if self.sender.is_waiting() { self.set_timer() } else { None };
        }
        let timed_out = self.sender.timed_out(self.deadline.1);
        self.silence.1 += u32::from(timed_out);
        if timed_out { self.arm(now) } else { None }
    }
}

fn psn(packet: u64) -> Psn {
    Psn::new(packet as u32)
}
