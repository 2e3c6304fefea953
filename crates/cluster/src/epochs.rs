//! Whether the service has the group as it is: a service that was restored from a backup may have
//! it as it was, or, where nodes have gone on from there, as it never was for others. The group
//! cannot go on then, since its nodes have later epochs.
//!
//! Shutting out an earlier primary is not here: `member` (`remora_store::replica`) asks for it, and
//! `outputs` does it, by `Link::fence` on the links of earlier epochs.

use std::time::{Duration, Instant};

use remora_store::replica::NodeId;

/// How long the service may be behind what a node has heard.
const BEHIND: Duration = Duration::from_secs(2);

/// What a node has heard of epochs.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The latest one, as the node's log or the service has had it.
    heard: u32,
    /// Its primary, if the service has told.
    primary: Option<NodeId>,
    /// That of the service's entry, and its primary, if there is an entry.
    seen: Option<(u32, NodeId)>,
    /// Since when the entry has been another one's.
    other_since: Option<Instant>,
}

impl Epochs {
    /// There is this epoch: the node's own log is of it.
    pub(crate) fn hear(&mut self, epoch: u32) {
        if epoch > self.heard {
            (self.heard, self.primary) = (epoch, None);
        }
        self.compare();
    }

    /// The service's entry is of this epoch, which has this primary.
    pub(crate) fn see(&mut self, epoch: u32, primary: NodeId) {
        self.seen = Some((epoch, primary));
        self.hear(epoch);
        if epoch == self.heard {
            self.primary.get_or_insert(primary);
        }
        self.compare();
    }

    /// The service has no entry. (It may be there again at once, as it was.)
    pub(crate) fn see_none(&mut self) {
        self.seen = None;
    }

    fn compare(&mut self) {
        if !self.are_others() {
            self.other_since = None;
        } else if self.other_since.is_none() {
            self.other_since = Some(Instant::now());
        }
    }

    /// Whether the service's entry is of an earlier epoch than the latest one, or has another
    /// primary for that.
    pub(crate) fn are_others(&self) -> bool {
        self.seen.is_some_and(|(seen, primary)| {
            let is_other = self.primary.is_some_and(|known| known != primary);
            seen < self.heard || seen == self.heard && is_other
        })
    }

    /// What to do, in words, if the entry is another one's for so long that it stays so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let since = self.other_since.filter(|_| self.are_others())?;
        (since.elapsed() >= BEHIND).then(|| self.words())
    }

    fn words(&self) -> String {
        let (heard, seen) = (self.heard, self.seen.map_or(0, |(seen, _)| seen));
        let differs = match seen == heard {
            true => format!("etcd has another primary of epoch {seen} than this node knows"),
            false => format!(
                "etcd has the group as it was in epoch {seen}, and this node has heard of epoch \
                 {heard}"
            ),
        };
        format!(
            "{differs}: was etcd restored from an older backup? End all of the cluster’s nodes, \
             delete its keys (etcdctl del --prefix /remora/CLUSTER/), and begin again from the \
             nodes’ directories (--restore)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NodeId = NodeId(1);
    const TWO: NodeId = NodeId(2);

    #[test]
    fn an_entry_of_an_earlier_epoch_is_found_out() {
        let mut epochs = Epochs::default();
        epochs.hear(7);
        assert!(!epochs.are_others(), "there is no entry yet");
        epochs.see(5, ONE);
        assert!(epochs.are_others() && epochs.trouble().is_none(), "it may be on its way");
        epochs.other_since = Instant::now().checked_sub(BEHIND);
        epochs.see_none();
        assert!(epochs.trouble().is_none());
        epochs.see(5, ONE);
        let words = epochs.trouble().unwrap();
        assert!(words.contains("in epoch 5") && words.contains("of epoch 7"), "{words}");
        epochs.see(8, ONE);
        assert!(!epochs.are_others() && epochs.trouble().is_none());
        epochs.hear(9);
        assert!(epochs.are_others() && epochs.trouble().is_none(), "it was behind before");
    }

    #[test]
    fn an_epoch_has_one_primary() {
        let mut epochs = Epochs::default();
        epochs.hear(2);
        epochs.see(2, TWO);
        epochs.see(2, TWO);
        assert!(!epochs.are_others());
        epochs.see(2, ONE);
        assert!(epochs.are_others());
        epochs.other_since = Instant::now().checked_sub(BEHIND);
        let words = epochs.trouble().unwrap();
        assert!(words.contains("another primary of epoch 2"), "{words}");
        epochs.see(3, ONE);
        assert!(!epochs.are_others() && epochs.trouble().is_none());
    }
}
