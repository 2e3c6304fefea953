//! The commands of an attached card. Most go to the card's process as they are; those that make or
//! change queues, or name memory, do something here, too.

use std::collections::VecDeque;

use remora_nic::QpFlags;
use remora_nic::qp::State;
use remora_nic::wire::Transport;

use super::posting::Posting;
use super::{Attached, Completions, QueuePair};
use crate::commands::words::*;
use crate::commands::{
    Bytes, CardCounters, Change, Command, Commands, OrGone, Place, QpMade, SrqMade, Wire,
};
use crate::shared::CompletionConsumer;

impl Attached {
    fn ask<R: OrGone + serde::de::DeserializeOwned>(&mut self, command: &Command<'_>) -> R {
        self.kick();
        let result = self.session.call(command).unwrap_or_else(R::gone);
        // What the command has ended, nobody is within any more.
        self.loans.settle();
        self.sweep_passes();
        result
    }

    /// The completion queue as it lies in the arena.
    pub(super) fn found(&mut self, cq: u32) -> Option<CompletionConsumer> {
        let place = self.session.completion_queue(cq)?;
        let ring = place.ring as usize;
        Some(CompletionConsumer::new(&self.arena, place.number, ring, place.depth))
    }

    fn keep_srq(&mut self, made: SrqMade) -> SrqMade {
        let posting = Posting::new(&self.arena, made.ring, false);
        let ring = posting.as_ref().map_or(made.ring, Posting::local);
        self.shared_receives.extend(posting.map(|posting| (made.srq, posting)));
        SrqMade { ring, ..made }
    }

    /// The bytes as the card's process can reach them.
    fn reach(&mut self, bytes: Bytes, access: Access) -> Result<Bytes, RegMrError> {
        let reached = self.loans.reach(&mut self.session, &self.arena, bytes, access)?;
        if matches!(reached.place, Place::Arena(_)) {
            // Elements can be written as memory.
            self.use_chains();
        }
        Ok(reached)
    }

    fn set_state(&mut self, qpn: u32, state: State) {
        let Some(qp) = self.queue_pairs.get_mut(&qpn) else { return };
        qp.state = state;
        if let Some(passes) = &mut qp.passes {
            passes.clear();
        }
        if state == State::Reset {
            qp.owed = 0;
            [&mut qp.send, &mut qp.recv].into_iter().flatten().for_each(Posting::reset);
            let cqs = qp.cqs;
            self.forget(qpn, cqs);
        }
    }

    /// Passes over the completions of a queue pair that was destroyed or reset.
    fn forget(&mut self, qpn: u32, cqs: [u32; 2]) {
        for cq in cqs {
            if let Some(queue) = self.completion_queues.get_mut(&cq) {
                queue.here.retain(|entry| entry.qpn != qpn);
                queue.flushed.retain(|entry| entry.qpn != qpn);
                queue.consumer.forget(qpn);
            }
        }
    }
}

/// Declares what each command does: those that are named do it by hand, below.
macro_rules! attached {
    ($(
        $(#[$doc:meta])+
        $name:ident = $variant:ident($($(#[$serde:meta])? $arg:ident: $type:ty),*) -> $result:ty;
    )+) => {
        #[allow(clippy::extra_unused_lifetimes, reason = "one form does for all commands")]
        impl Commands for Attached {
            $(
                fn $name<'a>(&mut self, $($arg: $type),*) -> $result {
                    let command = Command::$variant { $($arg),* };
                    let result = by_hand!($name, self, command, $($arg),*);
                    self.tell_end();
                    result
                }
            )+
        }
    };
}

macro_rules! by_hand {
    (create_cq, $card:ident, $command:ident, $entries:ident) => {
        $card.create_cq_here(&$command)
    };
    (create_counting_cq, $card:ident, $command:ident, $errors:ident) => {{
        $card.use_chains();
        $card.create_cq_here(&$command)
    }};
    (cq_count, $card:ident, $command:ident, $cq:ident) => {{
        let counted = $card.completion_queues.get(&$cq).map_or(0, |queue| queue.counted);
        let told: Option<u64> = $card.ask(&$command);
        told.map(|count| count.wrapping_add(counted))
    }};
    (destroy_cq, $card:ident, $command:ident, $cq:ident) => {{
        let ended = $card.ended($command);
        if ended.is_ok() {
            $card.completion_queues.remove(&$cq);
        }
        ended
    }};
    (resize_cq, $card:ident, $command:ident, $cq:ident, $entries:ident) => {
        $card.resize_cq_here(&$command, $cq)
    };
    (create_qp, $card:ident, $command:ident, $init:ident) => {
        $card.create_qp_here(&$command, &$init)
    };
    (modify_qp, $card:ident, $command:ident, $qpn:ident, $attr:ident) => {{
        let state = match &$command {
            Command::ModifyQp { attr, .. } => attr.state,
            _ => None,
        };
        let changed: Result<(), ModifyQpError> = $card.ask(&$command);
        if let (Ok(()), Some(state)) = (&changed, state) {
            $card.set_state($qpn, state);
        }
        changed
    }};
    (destroy_qp, $card:ident, $command:ident, $qpn:ident) => {{
        let ended = $card.ended($command);
        if ended.is_ok()
            && let Some(QueuePair { cqs, .. }) = $card.queue_pairs.remove(&$qpn)
        {
            $card.forget($qpn, cqs);
        }
        ended
    }};
    (create_srq, $card:ident, $command:ident, $pd:ident, $ring:ident) => {{
        let made: Result<SrqMade, CreateError> = $card.ask(&$command);
        made.map(|made| $card.keep_srq(made))
    }};
    (create_xrc_srq, $card:ident, $command:ident, $($arg:ident),*) => {{
        let made: Result<SrqMade, CreateError> = $card.ask(&$command);
        made.map(|made| $card.keep_srq(made))
    }};
    (resize_srq, $card:ident, $command:ident, $srq:ident, $ring:ident) => {{
        let made: Result<RingInit, ResizeSrqError> = $card.ask(&$command);
        made.map(|ring| $card.keep_srq(SrqMade { srq: $srq, ring }).ring)
    }};
    (destroy_srq, $card:ident, $command:ident, $srq:ident) => {{
        let ended = $card.ended($command);
        if ended.is_ok() {
            $card.shared_receives.remove(&$srq);
        }
        ended
    }};
    (reg_mr, $card:ident, $command:ident, $pd:ident, $bytes:ident, $access:ident) => {{
        let _ = $command;
        let reached = $card.reach($bytes, $access);
        let ask = |bytes| $card.ask(&Command::RegMr { pd: $pd, bytes, access: $access });
        let made: Result<Key, RegMrError> = reached.and_then(ask);
        if let Ok(key) = made {
            $card.passes.note_region(key, $pd, $bytes, $access);
        }
        made
    }};
    (rereg_mr, $card:ident, $command:ident, $key:ident, $change:ident) => {{
        let _ = $command;
        $card.passes.forget_region($key);
        let access = $change.access.unwrap_or(Access::empty());
        let bytes = $change.bytes.map(|bytes| $card.reach(bytes, access)).transpose();
        let ask = |bytes| {
            let change = Change { bytes, ..$change };
            $card.ask(&Command::ReregMr { key: $key, change })
        };
        bytes.and_then(ask)
    }};
    (loop_back, $card:ident, $command:ident, $a:ident, $b:ident, $access:ident) => {{
        let done: Result<(), ChainError> = $card.ask(&$command);
        if done.is_ok() {
            [$a, $b].into_iter().for_each(|qpn| $card.set_state(qpn, State::Rts));
        }
        done
    }};
    (connect, $card:ident, $command:ident, $request:ident) => {{
        let made: Result<ConnId, ConnectError> = $card.ask(&$command);
        $card.connections.extend(made.map(|conn| (conn, false)));
        made
    }};
    (establish, $card:ident, $command:ident, $conn:ident, $data:ident) => {{
        let done: Result<(), CommandError> = $card.ask(&$command);
        if done.is_ok() {
            $card.connections.insert($conn, true);
        }
        done
    }};
    (reject, $card:ident, $command:ident, $conn:ident, $($arg:ident),*) => {{
        $card.connections.remove(&$conn);
        $card.ask(&$command)
    }};
    (destroy_connection, $card:ident, $command:ident, $conn:ident) => {{
        $card.connections.remove(&$conn);
        $card.ask(&$command)
    }};
    (config, $card:ident, $command:ident, ) => {{
        let _ = $command;
        $card.config.clone()
    }};
    (dealloc_pd, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    (dereg_mr, $card:ident, $command:ident, $key:ident) => {{
        $card.passes.forget_region($key);
        let ended = $card.ended($command);
        $card.loans.forget_unmapped(&mut $card.session);
        ended
    }};
    (dealloc_mw, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    (free_dm, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    (destroy_ah, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    (dealloc_xrcd, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    (destroy_budget, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ended($command)
    };
    ($name:ident, $card:ident, $command:ident, $($arg:ident),*) => {
        $card.ask(&$command)
    };
}

impl Attached {
    /// Destroys something. What was on a card that has gone is destroyed already.
    fn ended(&mut self, command: Command<'_>) -> Result<(), DestroyError> {
        match self.ask(&command) {
            Err(DestroyError::Gone) if self.session.over().is_some() => Ok(()),
            ended => ended,
        }
    }

    fn create_cq_here(&mut self, command: &Command<'_>) -> Result<u32, CreateError> {
        let cq = self.ask::<Result<u32, CreateError>>(command)?;
        let consumer = self.found(cq).ok_or(CreateError::Gone)?;
        let (here, flushed, counted) = (VecDeque::new(), VecDeque::new(), 0);
        self.completion_queues.insert(cq, Completions { consumer, here, counted, flushed });
        Ok(cq)
    }

    fn resize_cq_here(&mut self, command: &Command<'_>, cq: u32) -> Result<(), ResizeCqError> {
        self.ask::<Result<(), ResizeCqError>>(command)?;
        let place = self.session.completion_queue(cq).ok_or(ResizeCqError::Gone)?;
        let queue = self.completion_queues.get_mut(&cq).ok_or(ResizeCqError::UnknownCq)?;
        queue.consumer.move_to(&self.arena, place.ring as usize, place.depth);
        Ok(())
    }

    fn create_qp_here(
        &mut self,
        command: &Command<'_>,
        init: &QpInit,
    ) -> Result<QpMade, CreateError> {
        if !init.flags.is_empty() {
            self.use_chains();
        }
        let made = self.ask::<Result<QpMade, CreateError>>(command)?;
        let managed = |flag| init.flags.contains(flag);
        let send = Posting::new(&self.arena, made.sq, managed(QpFlags::MANAGED_SEND));
        let recv = Posting::new(&self.arena, made.rq, managed(QpFlags::MANAGED_RECV));
        let local = |posting: &Option<Posting>, ring: RingInit| {
            posting.as_ref().map_or(RingInit { addr: 0, ..ring }, Posting::local)
        };
        let local = QpMade { sq: local(&send, made.sq), rq: local(&recv, made.rq), ..made };
        let queue_pair = QueuePair {
            state: State::Reset,
            send,
            recv,
            cqs: [init.send_cq, init.recv_cq],
            pd: init.pd,
            signal_all: init.signal_all,
            owed: 0,
            passes: (init.transport == Transport::Rc).then(Box::default),
        };
        self.queue_pairs.insert(made.qpn, queue_pair);
        Ok(local)
    }
}

for_each_command!(attached);
