//! Who waits until a majority holds a change: by sleeping, or by looking when there is news.

use std::time::Instant;

use remora_store::log::Position;
use remora_store::replica::Fate;

use crate::group::{Doubt, Group, GroupState};

impl Group {
    /// Waits until a majority holds the change at a position, with all before it. Once somebody has
    /// waited in vain, the next ones do not wait until something is committed.
    ///
    /// # Errors
    /// See [`Doubt`].
    pub fn wait(&self, position: Position) -> Result<(), Doubt> {
        let (mut state, from) = (self.lock(), Instant::now());
        state.carry_out(self);
        while !state.judge(self, position, from)? {
            let left = self.options.patience.saturating_sub(from.elapsed());
            state = self.sleep(state, left);
        }
        Ok(())
    }

    /// Has the others get what this node has logged, since somebody waits for that. While they have
    /// not confirmed what they got before, it waits for that, and goes in one WRITE with what is
    /// logged meanwhile: the node's thread posts it then.
    pub(crate) fn hasten(&self) {
        let mut state = self.lock();
        if state.replica.committed() >= state.posted_to.position {
            state.carry_out(self);
        }
    }

    /// Whether a majority holds the change at a position, with all before it, for which somebody
    /// has waited `from` then on: [`Group::wait`] by looking.
    ///
    /// # Errors
    /// See [`Doubt`].
    pub(crate) fn is_kept(&self, position: Position, from: Instant) -> Result<bool, Doubt> {
        self.lock().judge(self, position, from)
    }
}

impl GroupState {
    /// See [`Group::is_kept`].
    fn judge(&mut self, group: &Group, position: Position, from: Instant) -> Result<bool, Doubt> {
        match self.replica.fate(position) {
            Fate::Committed => return Ok(true),
            Fate::Unknown => return Err(Doubt::Replaced),
            Fate::Pending => {}
        }
        if let Some(reason) = &self.failure {
            return Err(Doubt::Failed(reason.clone()));
        }
        let patience = group.options.patience;
        let is_over = from.elapsed() >= patience;
        if is_over && self.advanced < from {
            self.undecided.stall(self.replica.committed());
        }
        if is_over || self.is_stalled() {
            return Err(Doubt::Late(patience));
        }
        Ok(false)
    }
}
