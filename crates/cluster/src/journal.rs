//! The journal of a node's store: the log of its group.

use std::sync::Arc;
use std::thread;

use remora_store::journal::{Journal, JournalError, Prepared, Record};
use remora_store::log::{Fields, Position};
use remora_store::replica::{AppendError, Replica, with_fields};
use remora_store::request::Asked;
use remora_store::way::region::Region;

use crate::group::{Group, GroupState};

/// The journal of a node's store: changes are logged in the group, where the node is the primary.
#[derive(Clone, Debug)]
pub struct GroupLog(pub Arc<Group>);

impl GroupLog {
    fn summed(&self, record: &Record<'_>) -> Prepared {
        let salt = self.0.options.salt;
        Prepared::summed(with_fields(record, |fields| fields.checksum_contents(salt)))
    }

    /// Logs a change: `append` gives its fields to the replica.
    fn log(
        &self,
        record: &Record<'_>,
        append: impl FnOnce(&mut Replica, &Region, &Fields<'_>) -> Result<Position, AppendError>,
    ) -> Result<u64, JournalError> {
        let group = &*self.0;
        let mut state = group.lock();
        if let Some(position) = state.repeating {
            return Ok(position.number());
        }
        let is_own = state.transacts == Some(thread::current().id());
        state.replica.set_apart(!is_own);
        // A transaction that has begun goes on: nobody is told of it before it is committed.
        if !is_own || !state.replica.is_amid_transaction() {
            takes_changes(&state, group).map_err(JournalError::Failed)?;
        }
        let appended =
            with_fields(record, |fields| append(&mut state.replica, &group.region, fields));
        let position = appended.map_err(|error: AppendError| match error {
            AppendError::TooLong { .. } | AppendError::Transaction { .. } => {
                JournalError::TooLong(error.to_string())
            }
            _ => JournalError::Failed(error.to_string()),
        })?;
        match record {
            Record::Flush { tablespace } => {
                state.flushes.insert(tablespace.0, position);
            }
            Record::Drop { tablespace } => {
                state.flushes.remove(&tablespace.0);
            }
            Record::Touch { .. } => state.touched = position,
            _ => {}
        }
        let key = match record {
            Record::Put { key, .. } | Record::Touch { key, .. } | Record::Delete { key, .. } => {
                Some(*key)
            }
            Record::Create { .. } | Record::Drop { .. } | Record::Flush { .. } => None,
        };
        let committed = state.replica.committed();
        state.undecided.note(position, key, committed);
        state.carry_out_soon(group);
        Ok(position.number())
    }
}

/// # Errors
/// Why this node logs nothing at the moment, in words.
fn takes_changes(state: &GroupState, group: &Group) -> Result<(), String> {
    state.check().map_err(|reason| reason.to_string())?;
    if let Some(reason) = state.refusal() {
        return Err(format!("the group can only be read at the moment: {reason}"));
    }
    if state.is_stalled() {
        return Err(format!(
            "the group can only be read at the moment: no majority has confirmed a change for \
             {:?}; `remora store cluster status` says why of each node",
            group.options.patience
        ));
    }
    Ok(())
}

impl Journal for GroupLog {
    fn append(&self, record: &Record<'_>) -> Result<u64, JournalError> {
        self.append_prepared(record, self.summed(record))
    }

    /// The checksum is the costly part, and needs no lock.
    fn prepare(&self, record: &Record<'_>) -> Option<Prepared> {
        Some(self.summed(record))
    }

    fn append_prepared(
        &self,
        record: &Record<'_>,
        prepared: Prepared,
    ) -> Result<u64, JournalError> {
        self.log(record, |replica, region, fields| {
            replica.append_summed(region, fields, prepared.sum())
        })
    }

    fn append_asked(&self, record: &Record<'_>, asked: &Asked<'_>) -> Result<u64, JournalError> {
        self.log(record, |replica, region, fields| {
            replica.append_request(region, asked.id, &asked.answer.borrow(), fields)
        })
    }

    /// Readers who ask nobody may see what no majority has.
    fn holds_back(&self) -> bool {
        true
    }

    /// The primary's clock decides, and nobody else's.
    fn logs_expiry(&self) -> bool {
        true
    }
}
