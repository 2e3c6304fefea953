//! Retries: how often a request is sent again without an answer, and when it is given up.

use core::time::Duration;

use super::Qp;
use crate::env::Env;
use crate::incident::{Cause, LossSign};
use crate::psn::Psn;
use crate::queue::Status;
use crate::time::Time;

impl Qp {
    /// Counts a retry from `psn` on, or gives up. Trouble began at `since`, if this is the first
    /// retry; `is_there` says whether the peer shows life in spite of it. Returns whether the
    /// requester tries again: after `retry_cnt` retries without progress the request ends with an
    /// error, except if the peer is there or its card has not taken them yet.
    pub(super) fn retry_or_give_up(
        &mut self,
        env: &mut Env<'_>,
        (psn, sign): (Psn, LossSign),
        since: Time,
        is_there: impl FnOnce(&Qp, Duration) -> bool,
    ) -> bool {
        if self.tx.retries_left == self.retry_cnt {
            self.cold.trouble_since = since;
        }
        let elapsed = env.now.since(self.cold.trouble_since);
        let held = self.retry_cnt > 0
            && (is_there(self, elapsed) || env.card.silent.is_held(self.path.dst, elapsed));
        if self.tx.retries_left == 0 && !held {
            let cause = Cause::RetriesExhausted { sign, retries: self.retry_cnt, elapsed };
            self.fail_front_for(env, Status::RetryExceeded, cause, (None, psn));
            return false;
        }
        env.card.counters.retries_waited += u64::from(self.tx.retries_left == 0);
        self.tx.retries_left = self.tx.retries_left.saturating_sub(1);
        true
    }
}
