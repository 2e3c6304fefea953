//! What kernels answer on a node of a cluster: its primary's part of the keys, as its Redis front
//! does.
//!
//! A call is carried out by a thread, since a change writes to the backups over the card that the
//! kernel runs on. The kernel waits for the majority and looks at the lease last; for both it has
//! the node's [`Standpoint`](crate::group::Standpoint).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::iter;
use std::sync::{Arc, PoisonError};

use remora::kernel::CallStatus;
use remora_store::front::slots::{Shard, Verdict, Wanted, slot_of};
use remora_store::log::Position;
use remora_store::memory::Memory;
use remora_store::replica::NoRequest;
use remora_store::service::FIRST;
use remora_store::tablespace::TablespaceId;
use remora_store::way::call::{
    ANSWER_LEN, AnswerHead, BadCall, Call, KEYS_ON_THEIR_WAY, LEASED, Operation, Refused,
};
use remora_store::way::clock::{boot_ns, now_ms};
use remora_store::way::execute::{Effort, answer_change, execute_call};
use remora_store::way::info::SpaceInfo;
use remora_store::way::kernel::{Executed, Served};

use crate::front::atlas_of;
use crate::slots::Slots;

/// A node of a group, as kernels serve it.
pub(crate) struct GroupStore<M: Memory> {
    slots: Arc<Slots<M>>,
}

impl<M: Memory> std::fmt::Debug for GroupStore<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupStore").field("slots", &self.slots).finish()
    }
}

/// The end of a call that depends on nothing that could change.
fn told(operation: Operation, done: Result<(), CallStatus>) -> Executed {
    Executed { until: 0, ..Executed::new(operation, done.map(|()| 0)) }
}

fn elsewhere<E>(_: E) -> CallStatus {
    Refused::Elsewhere.status()
}

impl<M: Memory + 'static> Served for GroupStore<M> {
    fn is_quick(&self) -> bool {
        false
    }

    fn execute(
        &self,
        _: Effort,
        operation: Operation,
        bytes: &[u8],
        (_, room): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Executed {
        let call = Call::parse(bytes).map_err(|bad| match bad {
            BadCall::TooLong => Refused::TooLarge.status(),
            _ => CallStatus::BAD_PARAMS,
        });
        let call = match call {
            Ok(call) => call,
            Err(status) => return told(operation, Err(status)),
        };
        match operation {
            Operation::Map => told(operation, self.tell_map(&call, room, out)),
            Operation::Tablespace if call.key == FIRST.as_bytes() => {
                answer_change(0, &[], out);
                told(operation, Ok(()))
            }
            Operation::Tablespace => told(operation, Err(Refused::Tablespace.status())),
            Operation::Create | Operation::Drop => told(operation, Err(Refused::Cluster.status())),
            _ if call.tablespace != 0 || call.request.is_some() && !operation.is_of_a_key() => {
                told(operation, Err(Refused::Cluster.status()))
            }
            _ => {
                let done = self.serve(operation, &call, room, out);
                done.unwrap_or_else(|status| told(operation, Err(status)))
            }
        }
    }

    fn is_durable(&self, executed: &Executed) -> Result<bool, CallStatus> {
        if executed.until == 0 {
            return Ok(true);
        }
        let until = Position::from_number(executed.until);
        let standpoint = self.slots.group.standpoint();
        // The lease is looked at last: what was read before is then so for everybody.
        if standpoint.epoch != until.epoch() || boot_ns() >= standpoint.until_ns {
            let reason = if executed.has_changed { Refused::Doubt } else { Refused::Elsewhere };
            return Err(reason.status());
        }
        Ok(standpoint.committed >= until)
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        Served::counts(&*self.slots.store)
    }

    fn tablespaces(&self) -> Vec<SpaceInfo> {
        Served::tablespaces(&*self.slots.store)
    }
}

impl<M: Memory + 'static> GroupStore<M> {
    /// The node whose part in its group's slots this is.
    pub(crate) fn new(slots: Arc<Slots<M>>) -> GroupStore<M> {
        GroupStore { slots }
    }

    /// The cluster's map, from byte `argument` on.
    fn tell_map(&self, call: &Call<'_>, room: usize, out: &mut Vec<u8>) -> Result<(), CallStatus> {
        let text = atlas_of(&self.slots).told().to_text();
        let room = room.checked_sub(ANSWER_LEN).ok_or(CallStatus::TOO_LONG)?;
        let from = usize::try_from(call.argument).unwrap_or(usize::MAX).min(text.len());
        let mut sum = DefaultHasher::new();
        text.hash(&mut sum);
        let head = AnswerHead {
            version: sum.finish(),
            value_len: text.len() as u32,
            ..AnswerHead::default()
        };
        out.extend_from_slice(&head.to_bytes());
        out.extend_from_slice(&text.as_bytes()[from..text.len().min(from + room)]);
        Ok(())
    }

    /// Carries out a call at the primary. An error depends on nothing that could change: the call
    /// had no effect.
    fn serve(
        &self,
        operation: Operation,
        call: &Call<'_>,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<Executed, CallStatus> {
        let keys = (!call.key.is_empty()).then_some(call.key);
        let shard = &self.slots.group.shard;
        let held = shard.read().unwrap_or_else(PoisonError::into_inner);
        if !keys.is_some_and(|key| held.is_giving(slot_of(key))) {
            return self.serve_in(&held, operation, call, room, out);
        }
        drop(held);
        // Keys of this slot go away one by one: a look whether one is there is taken alone.
        let alone = shard.write().unwrap_or_else(PoisonError::into_inner);
        self.serve_in(&alone, operation, call, room, out)
    }

    /// Carries out a call while the group's slots stay as they are. No later epoch begins here
    /// meanwhile.
    fn serve_in(
        &self,
        shard: &Shard,
        operation: Operation,
        call: &Call<'_>,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<Executed, CallStatus> {
        let state = self.slots.group.lock();
        state.check().map_err(elsewhere)?;
        let epoch = state.replica.epoch();
        drop(state);
        let space = self.slots.store.tablespace(FIRST).ok_or(Refused::Elsewhere.status())?;
        let (start, call) = (out.len(), Call { tablespace: space.0, ..*call });
        let done = self.carry_out(shard, operation, &call, room, out);
        if done.is_err() {
            out.truncate(start);
        }
        self.settle(epoch, operation, done)
    }

    /// Carries out a call; returns the version that is answered.
    fn carry_out(
        &self,
        shard: &Shard,
        operation: Operation,
        call: &Call<'_>,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, CallStatus> {
        let (start, now) = (out.len(), now_ms());
        if let Some(version) = self.repeat(call, out)? {
            return Ok(version);
        }
        self.judge(shard, operation, call, now)?;
        if operation == Operation::Lease {
            return self.lease(out);
        }
        let store = &*self.slots.store;
        let done = execute_call(Effort::Any, store, operation, call, (now, room), out);
        if done == Err(Refused::ReadOnly.status()) {
            // A request that has had its effect meanwhile cannot be logged again.
            out.truncate(start);
            if let Some(version) = self.repeat(call, out)? {
                return Ok(version);
            }
        }
        if done.is_ok() {
            self.amend(shard, operation, call, &mut out[start..]);
        }
        done
    }

    /// Says in an answer what only a group can say.
    fn amend(&self, shard: &Shard, operation: Operation, call: &Call<'_>, answer: &mut [u8]) {
        let Some((said, _)) = AnswerHead::parse(answer) else { return };
        let head = match operation {
            // Clients name the tablespace by number 0, whichever it has here.
            Operation::Describe => {
                let (version, flags) = (call.tablespace.into(), said.flags | LEASED);
                AnswerHead { version, flags, ..said }
            }
            // The shard is held while the rows are read: keys come and go before or after that.
            Operation::Scan if shard.transit.is_empty() => {
                AnswerHead { expires_ms: self.slots.last_handed(), ..said }
            }
            Operation::Scan => AnswerHead { expires_ms: KEYS_ON_THEIR_WAY, ..said },
            _ => return,
        };
        answer[..ANSWER_LEN].copy_from_slice(&head.to_bytes());
    }

    /// What the end of a call rests on, if this node has served in the same epoch all the time.
    fn settle(
        &self,
        epoch: u32,
        operation: Operation,
        done: Result<u64, CallStatus>,
    ) -> Result<Executed, CallStatus> {
        let mut executed = Executed::new(operation, done);
        let state = self.slots.group.lock();
        let is_same = state.replica.epoch() == epoch && state.is_open();
        if !is_same && executed.has_changed {
            return Err(Refused::Doubt.status());
        }
        let is_refused = done == Err(Refused::ReadOnly.status()) && state.check().is_err();
        if !is_same || is_refused {
            return Err(Refused::Elsewhere.status());
        }
        let (last, committed) = (state.replica.last().position, state.replica.committed());
        let until = match (operation, done) {
            (Operation::Lease | Operation::Describe, _) => committed,
            // What was read or changed may be committed already.
            (Operation::Get, Ok(version)) => {
                committed.max(Position::from_number(version)).max(state.touched)
            }
            (_, Ok(version)) if executed.has_changed => {
                committed.max(Position::from_number(version))
            }
            _ => last,
        };
        executed.until = until.number();
        drop(state);
        if until > committed {
            // The call waits for the other nodes from here on.
            self.slots.group.hasten();
        }
        Ok(executed)
    }

    /// What a request was answered that has taken effect already; nothing, if it has not.
    fn repeat(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<Option<u64>, CallStatus> {
        let Some(id) = call.request else { return Ok(None) };
        let state = self.slots.group.lock();
        let version = match state.replica.find_request(id) {
            Ok(None) => return Ok(None),
            Ok(Some((position, answer))) => {
                answer_change(position.number(), answer, out);
                position.number()
            }
            Err(NoRequest::Old(_) | NoRequest::Forgotten(_) | NoRequest::Answer(_)) => {
                return Err(Refused::Forgotten.status());
            }
        };
        drop(state);
        // The thread that has logged the change may not have published it yet.
        self.slots.store.await_change(TablespaceId(call.tablespace), call.key);
        Ok(Some(version))
    }

    /// Whether the call is carried out here, and now.
    fn judge(
        &self,
        shard: &Shard,
        operation: Operation,
        call: &Call<'_>,
        now: u64,
    ) -> Result<(), CallStatus> {
        let wanted = Wanted { writes: operation.changes(), is_asking: call.is_asking };
        let is_here = |key: &[u8]| {
            let pin = self.slots.store.pin();
            let space = TablespaceId(call.tablespace);
            self.slots.store.locate(&pin, space, key, now).is_some()
        };
        let keys = (!call.key.is_empty()).then_some(call.key);
        let verdict = match keys {
            Some(key) => shard.judge(iter::once(key), wanted, is_here),
            None => shard.judge(iter::empty(), wanted, is_here),
        };
        match verdict {
            Verdict::Here => Ok(()),
            Verdict::Moved(_) | Verdict::Crosses => Err(Refused::Elsewhere.status()),
            Verdict::Ask(_) => Err(Refused::Asks.status()),
            Verdict::Split | Verdict::InTransit => Err(Refused::OnItsWay.status()),
        }
    }

    /// For how long a client may count on what it READs: the rest of the lease, of which clocks may
    /// gain and lose a part. The client begins to count before this node has looked at its clock.
    fn lease(&self, out: &mut Vec<u8>) -> Result<u64, CallStatus> {
        let state = self.slots.group.lock();
        let left = state.replica.lease_until_ns().saturating_sub(boot_ns());
        let drift = u128::from(self.slots.group.options.drift_ppm);
        let counted = u128::from(left) * (MILLION - drift) / (MILLION + drift);
        let version = state.replica.committed().number();
        // At most what is left.
        let head = AnswerHead { version, expires_ms: counted as u64, ..AnswerHead::default() };
        out.extend_from_slice(&head.to_bytes());
        Ok(0)
    }
}

const MILLION: u128 = 1_000_000;
