//! The queue pair, in its parts.
//!
//! - Here: the state of a queue pair, and its turn. [`state`]: the table of its states; `info`:
//!   what it is made with, and its present properties.
//! - Sending: `post` writes elements into the rings; `judge` checks them, `requester` turns them
//!   into packets, `window` and the policies of `congestion` say how many may be outstanding;
//!   `send_progress` is what a message has left to send, and what it waits for.
//! - Receiving: `incoming` hands a packet to the part that it is for. `completer` takes the answers
//!   of the peer; `responder` carries out its requests, `receive` fills receive elements, `answers`
//!   answers READs and atomics, `acknowledge` acknowledges the rest. `retry` counts retries and
//!   gives up.
//! - Other services: `datagram` receives for UC and UD, `xrc` is what XRC does besides.
//! - What goes wrong: `refusal` says why something is not carried out, `flush` how work ends in
//!   ERROR, `congestion` what marks, delays and losses do; `shortest_round_trip` is that
//!   of late.
//! - A network that loses and reorders: `lossy`, between cards that have agreed on it.
//! - A peer on the same card: `direct`.
//! - Chains: `order` has WAIT and ENABLE, `loop_back` a peer on the same card, `limits` the limits
//!   of a send queue. Kernels: `kernel` takes calls and sends results.
//!
//! The state that every packet needs is at most 208 bytes ([`Qp`]; the build checks it). The rest
//! is in a box ([`Cold`]) or in pools that the whole card shares.

mod acknowledge;
mod answers;
mod completer;
mod congestion;
mod datagram;
mod direct;
mod flush;
mod incoming;
pub(crate) mod info;
mod judge;
mod kernel;
mod limits;
mod loop_back;
mod lossy;
mod order;
mod post;
mod receive;
mod refusal;
mod requester;
mod responder;
mod retry;
mod send_progress;
mod shortest_round_trip;
pub mod state;
mod window;
mod xrc;

pub use crate::congestion::Congestion;
pub use congestion::{Dcqcn, Dctcp};
pub use info::{QpInfo, QpInit};
pub use lossy::LOSSY_HOT_BYTES;
pub use post::PostError;
pub(crate) use post::post;
pub use retry::rnr_delay;
pub use send_progress::SendProgress;
pub use state::{ModifyQpError, Mtu, QpAttr, State};
pub use window::Window;

pub(crate) use direct::{Ran, turn as direct_turn};
pub(crate) use incoming::Incoming;
pub(crate) use limits::SendLimits;
pub(crate) use loop_back::{enable, turns as loop_back_turns};
pub(crate) use lossy::LossyUse;

use std::collections::VecDeque;

use crate::card::Card;
use crate::chain::Mode;
use crate::config::Config;
use crate::env::Env;
use crate::event::Event;
use crate::handles::Xrcd;
use crate::incident::{Blame, Cause, Incident, Outcome};
use crate::kernel::{Posted, Runner};
use crate::memory::key::{Access, AccessError, Pd, Scope};
use crate::multi_queue::List;
use crate::numbered::Numbered;
use crate::prefetch::prefetch;
use crate::psn::Psn;
use crate::queue::Status;
use crate::queue::ring::Ring;
use crate::scheduler::TurnBudget;
use crate::time::Time;
use crate::transmit::{Path, TransmitBatch};
use crate::turn_order::{Of, TurnOrder};
use crate::wire::{Bth, Dialect, Nak, Op, Transport};
use receive::Receive;
pub(crate) use requester::Requester;
pub(crate) use responder::Responder;
use responder::Rest;

/// The most READs and atomics that may be outstanding in one direction of a queue pair.
pub const MAX_RD_ATOMIC: u8 = 16;

/// All queue pairs of a card.
pub(crate) type Qps = Numbered<Qp>;

/// A queue pair's hot state.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) pd: Pd,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    /// The handle of the shared receive queue, 0 for none.
    pub(crate) srq: u32,
    pub(crate) dest_qp: u32,
    pub(crate) sq: Ring,
    pub(crate) rq: Ring,
    pub(crate) tx: Requester,
    pub(crate) rx: Responder,
    pub(crate) path: Path,
    pub(crate) mtu: u16,
    pub(crate) state: State,
    pub(crate) transport: Transport,
    pub(crate) dialect: Dialect,
    pub(crate) access: Access,
    pub(crate) mode: Mode,
    /// It is in the schedule queue (the ready state of SRNIC §4.3.1).
    pub(crate) queued: bool,
    pub(crate) signal_all: bool,
    /// The wait for an acknowledge, as a code of the specification.
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// The client that it belongs to.
    pub(crate) client: u16,
    pub(crate) cold: Box<Cold>,
}

/// The state that messages of one packet do not need as long as nothing goes wrong.
#[derive(Debug)]
pub(crate) struct Cold {
    /// When the next congestion notification may be sent.
    pub(crate) next_cnp: Time,
    pub(crate) qkey: u32,
    /// The READs and atomics of the peer that are kept, answered or not, oldest first.
    pub(crate) answers: List,
    /// Of a WRITE or RPC WRITE in progress: what is still to come.
    rest: Rest,
    /// The receive element that [`Mode::RECEIVING`] speaks of.
    receive: Option<Receive>,
    pub(crate) min_rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// The event "communication established" was raised.
    pub(crate) peer_told: bool,
    /// The event "last element reached" of a queue pair with a shared receive queue was raised.
    pub(crate) last_element_told: bool,
    /// The event "send queue drained" must still be raised.
    pub(crate) drain_wanted: bool,
    /// The scheduler's mark of when the queue pair was last starved.
    pub(crate) starved: u64,
    /// Of an XRC target: the domain of its shared receive queues.
    pub(crate) xrcd: Option<Xrcd>,
    /// How many multicast groups it is attached to.
    pub(crate) groups: u32,
    /// When the first of the present row of retries began.
    pub(crate) trouble_since: Time,
    /// The messages that kernels want to send, besides the elements of the ring.
    pub(crate) posted: VecDeque<Posted>,
    /// How many messages of kernels it has, waiting there or not yet acknowledged.
    pub(crate) kernel_sends: u32,
    /// The kernel that received WRITEs pass; zero for none.
    pub(crate) receive_tap: u32,
    /// The kernel that sent WRITEs pass; zero for none.
    pub(crate) send_tap: u32,
    /// How many elements the owner has written into a managed send queue and receive queue.
    pub(crate) written: [u32; 2],
    /// Where the queue pair is listed to be woken, if a WAIT holds it.
    pub(crate) waiting: Option<order::Waiting>,
    pub(crate) limits: Option<Box<SendLimits>>,
    /// The state of a congestion policy that has some.
    control: Option<Box<congestion::Control>>,
    /// The queue pair is listed among those that wait until their client may go on.
    pub(crate) waits_for_client: bool,
    /// There may be passes for one of the two directions ([`crate::nic::Pass`]).
    pub(crate) passes: bool,
    /// What a queue pair of the lossy dialect has besides.
    lossy: Option<Box<lossy::Lossy>>,
}

/// The bytes of a queue pair's hot state, which every packet needs.
pub const HOT_BYTES: usize = size_of::<Qp>();
/// SRNIC has 210 (Table 1).
const _: () = assert!(HOT_BYTES <= 208);
/// The bytes of the rest of its state, without what kernels and chains add.
pub(crate) const COLD_BYTES: usize = size_of::<Cold>();

impl Cold {
    pub(crate) fn new() -> Cold {
        Cold {
            next_cnp: Time::ZERO,
            qkey: 0,
            answers: List::EMPTY,
            rest: Rest::default(),
            receive: None,
            min_rnr_timer: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            peer_told: false,
            last_element_told: false,
            drain_wanted: false,
            starved: 0,
            xrcd: None,
            groups: 0,
            trouble_since: Time::ZERO,
            posted: VecDeque::new(),
            kernel_sends: 0,
            receive_tap: 0,
            send_tap: 0,
            written: [0; 2],
            waiting: None,
            limits: None,
            control: None,
            waits_for_client: false,
            passes: false,
            lossy: None,
        }
    }
}

impl Qp {
    /// Announces that the hot state will be needed. These fields lie in its four cache lines, in
    /// whichever order the compiler has laid them out.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.sq);
        prefetch(&self.rq);
        prefetch(&self.tx);
        prefetch(&self.rx);
        prefetch(&self.path);
        prefetch(&self.mode);
    }

    /// The queue pair's column in the table of states.
    pub(crate) fn service(&self) -> state::Service {
        match self.transport {
            Transport::Rc => state::Service::Rc,
            Transport::Uc => state::Service::Uc,
            Transport::Ud => state::Service::Ud,
            Transport::Xrc if self.cold.xrcd.is_some() => state::Service::XrcReceive,
            Transport::Xrc => state::Service::XrcSend,
        }
    }

    /// Makes the queue pair ready: it has something to do, and will have a turn.
    // As a call this costs 34 instructions a WRITE (`./ci.sh cost`).
    #[inline(always)]
    pub(crate) fn schedule(&mut self, card: &mut Card) {
        let of = self.of(card);
        card.scheduler.schedule(self.qpn, of, &mut self.queued);
    }

    /// What the queue pair is for the scheduler.
    #[inline]
    fn of(&self, card: &Card) -> Of {
        let left = match card.config.turn_order {
            TurnOrder::InTurn => 0,
            TurnOrder::ShortestFirst => self.bytes_left(card),
        };
        Of { client: self.client, level: self.path.service_level, left }
    }

    /// This queue pair as a user of keys.
    pub(crate) fn scope(&self) -> Scope {
        Scope { pd: self.pd, qpn: self.qpn }
    }

    /// Ends the request of a packet whose payload the driver could not read.
    pub(crate) fn handle_fault(&mut self, env: &mut Env<'_>, bth: &Bth) {
        env.card.counters.refused_memory += 1;
        if !matches!(self.state, State::Rtr | State::Rts | State::Sqd) {
            return;
        }
        let op = Op::lookup(bth.opcode, self.dialect);
        let (packet, cause) = ((op, Some(bth.psn)), Cause::Unreadable);
        if op.is_some_and(Op::is_response) && self.is_lossy() {
            return self.fail_lossy_answer(env, bth.psn, AccessError::Memory);
        }
        if op.is_some_and(Op::is_response) {
            self.report(env, Outcome::Refused(Nak::RemoteOperational), packet, cause);
            return self.break_answer(env, bth.psn, Nak::RemoteOperational);
        }
        let pool = &mut env.card.outstanding;
        let at = pool.find(&self.tx.outstanding, |work| work.holds(bth.psn));
        if let Some(work) = pool.get_mut(at) {
            let status = Status::LocalProtection;
            work.failed = Some(status);
            let outcome = work.fails_with(status);
            self.report(env, outcome, packet, cause);
            self.settle_failures(env);
        } else if !self.transport.is_reliable() {
            // The request was done when its last packet was made.
            self.report(env, Outcome::Lost, packet, cause);
            self.stop_sending(env);
        }
    }

    /// Keeps an incident.
    #[cold]
    pub(crate) fn report(
        &self,
        env: &mut Env<'_>,
        outcome: Outcome,
        (op, psn): (Option<&'static Op>, Option<Psn>),
        blame: impl Into<Blame>,
    ) {
        let Blame { cause, memory } = blame.into();
        let incident = Incident { at: env.now, qpn: self.qpn, outcome, op, psn, cause, memory };
        env.card.counters.incidents_lost += u64::from(env.card.incidents.push(incident));
    }

    /// Takes attributes that [`state::check`] has allowed, and goes to `to`.
    pub(crate) fn modify(&mut self, env: &mut Env<'_>, to: State, attr: &QpAttr) {
        self.end_passes(env.card);
        self.take(env, attr);
        self.restart(env, attr);
        self.enter(env, to);
    }

    /// Takes the attributes that change nothing under way.
    fn take(&mut self, env: &Env<'_>, attr: &QpAttr) {
        let cold = &mut *self.cold;
        let mut set = |value: Option<u8>, field: fn(&mut Cold) -> &mut u8| {
            if let Some(value) = value {
                *field(cold) = value;
            }
        };
        set(attr.min_rnr_timer, |c| &mut c.min_rnr_timer);
        set(attr.max_rd_atomic, |c| &mut c.max_rd_atomic);
        set(attr.max_dest_rd_atomic, |c| &mut c.max_dest_rd_atomic);
        cold.qkey = attr.qkey.unwrap_or(cold.qkey);
        self.timeout = attr.timeout.unwrap_or(self.timeout);
        self.retry_cnt = attr.retry_cnt.unwrap_or(self.retry_cnt);
        self.rnr_retry = attr.rnr_retry.unwrap_or(self.rnr_retry);
        self.access = attr.access.unwrap_or(self.access);
        self.path = attr.path.unwrap_or(self.path);
        self.note_path(&env.card.config);
        self.mtu = attr.path_mtu.map_or(self.mtu, |mtu| mtu as u16);
        self.dest_qp = attr.dest_qp.unwrap_or(self.dest_qp);
        self.dialect = attr.dialect.unwrap_or(self.dialect);
    }

    /// Begins anew what the attributes name the beginning of: the counts of retries, the PSNs of
    /// either direction, the window.
    fn restart(&mut self, env: &mut Env<'_>, attr: &QpAttr) {
        self.tx.retries_left = self.retry_cnt;
        self.tx.rnr_retries_left = self.rnr_retry;
        if let Some(psn) = attr.rq_psn {
            self.rx = Responder::new(psn);
        }
        if attr.dialect.is_some() || attr.rq_psn.is_some() {
            self.renew_lossy(env.card);
        }
        if let Some(psn) = attr.sq_psn {
            self.tx = Requester {
                retries_left: self.retry_cnt,
                rnr_retries_left: self.rnr_retry,
                window: self.tx.window,
                ..Requester::new(psn, env.card.config.window_packets)
            };
        }
        if attr.congestion.is_some() || attr.sq_psn.is_some() {
            self.follow(attr.congestion.unwrap_or(self.policy()), env.card);
        }
    }

    /// Goes to a state.
    fn enter(&mut self, env: &mut Env<'_>, to: State) {
        match to {
            State::Reset => {
                self.reset(env.card, env.kernels);
                self.forget_completions(env.card);
                self.state = State::Reset;
            }
            State::Error => self.fail(env),
            State::Sqd if self.state == State::Rts => {
                self.state = State::Sqd;
                self.cold.drain_wanted = !self.tx.outstanding.is_empty();
                if !self.cold.drain_wanted {
                    env.card.events.push_back(Event::SendQueueDrained(self.qpn));
                }
            }
            _ => {
                self.state = to;
                self.schedule(env.card);
            }
        }
    }

    /// Notes whether packets of the queue pair may be for the card itself. A datagram may go
    /// anywhere.
    pub(crate) fn note_path(&mut self, config: &Config) {
        let may_be = self.transport == Transport::Ud || self.path.dst == config.address;
        self.mode.set(Mode::LOCAL, config.local_shortcut && may_be);
    }

    /// The present properties of the queue pair.
    pub(crate) fn info(&self) -> QpInfo {
        let cold = &self.cold;
        QpInfo {
            state: self.state,
            transport: self.transport,
            attr: QpAttr {
                state: Some(self.state),
                access: Some(self.access),
                qkey: Some(cold.qkey),
                path: Some(self.path),
                path_mtu: Mtu::from_bytes(self.mtu),
                dest_qp: Some(self.dest_qp),
                rq_psn: Some(self.rx.expected),
                sq_psn: Some(self.tx.next),
                max_rd_atomic: Some(cold.max_rd_atomic),
                max_dest_rd_atomic: Some(cold.max_dest_rd_atomic),
                min_rnr_timer: Some(cold.min_rnr_timer),
                timeout: Some(self.timeout),
                retry_cnt: Some(self.retry_cnt),
                rnr_retry: Some(self.rnr_retry),
                dialect: Some(self.dialect),
                congestion: Some(self.policy()),
            },
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: (self.srq != 0).then_some(self.srq),
            depths: (self.sq.depth(), self.rq.depth()),
            signal_all: self.signal_all,
            client: self.client,
            draining: self.state == State::Sqd && self.cold.drain_wanted,
            sends: self.sq.in_use(),
            outstanding: self.tx.outstanding.len(),
            receives: self.rq.waiting(),
        }
    }

    /// One turn: answers, requests, acknowledge, in this order, so that an acknowledge leaves
    /// behind data. Returns whether the queue pair needs another turn.
    ///
    /// Functions that a WRITE or SEND of the host does not need are out of line. After a system
    /// call this code comes from a farther cache, and should not be mixed with code that is
    /// skipped.
    #[inline(never)]
    pub(crate) fn turn(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) -> bool {
        let kernel_answers = self.has_posted();
        let sends = !self.tx.outstanding.is_empty() || self.sq.waiting() > 0 || kernel_answers;
        if self.mode.contains(Mode::CONTROLLED) && self.is_held(env, sends) {
            return self.held_turn(env, batch);
        }
        let (mut answers, kept) = TurnBudget::turn(&env.card.config).share(sends);
        if self.rx.cnp_owed {
            self.send_cnp(env, batch);
        }
        if self.rx.pending > 0 {
            self.send_answers_in_turn(env, batch, &mut answers);
        }
        let mut budget = kept.with_rest_of(answers);
        let before = batch.len();
        let again = match self.state {
            State::Rts | State::Sqd => {
                (sends || self.has_lossy_work()) && self.send_requests(env, batch, &mut budget)
            }
            State::Error | State::Sqe => self.flush(env, &mut budget),
            _ => false,
        };
        if batch.len() == before {
            self.note_lone_acknowledge();
            self.send_acknowledge(env, batch);
        } else if !batch.is_answering(kernel_answers) || !self.hold_acknowledge(env.card) {
            self.send_acknowledge(env, batch);
        }
        env.card.scheduler.left = budget;
        again || self.rx.pending > 0
    }

    /// A turn in which a rate holds back answers and requests, and nothing else.
    #[cold]
    fn held_turn(&mut self, env: &mut Env<'_>, batch: &mut TransmitBatch) -> bool {
        if self.rx.cnp_owed {
            self.send_cnp(env, batch);
        }
        self.note_lone_acknowledge();
        self.send_acknowledge(env, batch);
        env.card.scheduler.left = TurnBudget::turn(&env.card.config);
        false
    }

    /// Do kernels have messages to send?
    pub(crate) fn has_posted(&self) -> bool {
        self.mode.contains(Mode::POSTED)
    }

    /// Is this a service that carries kernels' messages?
    pub(crate) fn is_for_kernels(&self) -> bool {
        self.transport == Transport::Rc && !self.mode.contains(Mode::LOOP_BACK)
    }

    /// Can the queue pair send kernels' messages, now or as soon as it is connected?
    pub(crate) fn sends_for_kernels(&self) -> bool {
        self.is_for_kernels() && matches!(self.state, State::Rtr | State::Rts | State::Sqd)
    }

    /// Removes completions that were not polled yet: a queue pair that begins anew must not find
    /// those of its former requests. (Drivers of hardware cards remove them, too.) Those of an XRC
    /// target stay: they give the owners of shared receive queues their elements back.
    fn forget_completions(&self, card: &mut Card) {
        if self.cold.xrcd.is_some() {
            return;
        }
        for cq in [self.send_cq, self.recv_cq] {
            if let Some(queue) = card.cqs.get_mut(cq) {
                queue.forget(self.qpn);
            }
        }
    }

    /// Forgets all work and all sequence state (RESET, or before destruction).
    pub(crate) fn reset(&mut self, card: &mut Card, kernels: &mut Runner) {
        self.end_passes(card);
        while let Some(work) = card.outstanding.pop(&mut self.tx.outstanding) {
            work.more.into_iter().for_each(|slot| card.sgls.release(slot));
            kernel::end_posted(kernels, &mut card.kernel, &work, Status::Flushed);
        }
        self.drop_posted(kernels, &mut card.kernel);
        self.cold.kernel_sends = 0;
        kernels.closed(&mut card.kernel, self.qpn);
        card.feed();
        while card.answers.pop(&mut self.cold.answers).is_some() {}
        self.take_kept().into_iter().for_each(|receive| card.sgls.release(receive.sgl));
        self.dialect = Dialect::STANDARD;
        self.renew_lossy(card);
        self.leave_waiting(card);
        card.take_unsettled(self.qpn);
        self.receives_again(card);
        self.mode.remove(Mode::LOOP_BACK);
        self.cold.written = [0; 2];
        self.sq.reset();
        self.rq.reset();
        let limit = card.config.window_packets;
        self.tx = Requester::new(Psn::default(), limit);
        self.rx = Responder::new(Psn::default());
        self.follow(card.config.congestion, card);
        self.cold.peer_told = false;
        self.cold.last_element_told = false;
        self.cold.drain_wanted = false;
    }
}
