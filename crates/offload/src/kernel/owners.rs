//! Whose the buffers for results are. A peer that acknowledges no answers keeps them; the rest is
//! for others.

use core::hash::BuildHasherDefault;
use std::collections::HashMap;

use super::hasher::NumberHasher;

/// The bytes that a queue pair may have, however few are left for others.
const ALWAYS: usize = 256 << 10;
/// A queue pair with fewer buffers may always call: as for the card's messages, two ends that call
/// each other might otherwise refuse calls that the other's answers wait behind.
const FEW: u32 = 256;

/// What is in use, with what is asked for, and the most that may be.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub(super) all: usize,
    pub(super) more: usize,
    pub(super) limit: usize,
}

/// The owners of buffers: queue pairs that calls have come by, and the clients that have them.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The accounts of queue pairs, by their numbers.
    open: HashMap<u64, u32, BuildHasherDefault<NumberHasher>>,
    /// The queue pair that was looked up last, and its account.
    last: Option<(u32, u32)>,
    accounts: Vec<Account>,
    free: Vec<u32>,
    /// By number.
    clients: Vec<Client>,
}

/// What the buffers of a queue pair's calls count for.
#[derive(Debug)]
struct Account {
    client: u16,
    /// The queue pair is gone: the account is free when it is empty.
    closed: bool,
    buffers: u32,
    bytes: usize,
}

/// A client of the card, and what its queue pairs have.
#[derive(Clone, Debug, Default)]
struct Client {
    user: Option<u32>,
    bytes: usize,
}

impl Owners {
    /// Says whose a client is.
    pub(super) fn set_user(&mut self, client: u16, user: u32) {
        self.client(client).user = Some(user);
    }

    pub(super) fn user_of(&self, client: u16) -> Option<u32> {
        self.clients.get(usize::from(client))?.user
    }

    fn client(&mut self, client: u16) -> &mut Client {
        let at = usize::from(client);
        self.clients.resize(self.clients.len().max(at + 1), Client::default());
        &mut self.clients[at]
    }

    /// The number of a queue pair's account.
    #[inline]
    pub(super) fn account(&mut self, qpn: u32, client: u16) -> u32 {
        if let Some((_, at)) = self.last.filter(|last| last.0 == qpn) {
            return at;
        }
        let open = self.open.get(&qpn.into()).copied();
        let at = open.unwrap_or_else(|| self.open(qpn, client));
        self.last = Some((qpn, at));
        at
    }

    #[cold]
    fn open(&mut self, qpn: u32, client: u16) -> u32 {
        self.client(client);
        let account = Account { client, closed: false, buffers: 0, bytes: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.accounts[at as usize] = account;
                at
            }
            None => {
                self.accounts.push(account);
                self.accounts.len() as u32 - 1
            }
        };
        self.open.insert(qpn.into(), at);
        at
    }

    /// A queue pair is gone. What it still has is counted until it is given back.
    pub(super) fn close(&mut self, qpn: u32) {
        self.last = None;
        if let Some(at) = self.open.remove(&qpn.into()) {
            self.accounts[at as usize].closed = true;
            self.free_if_empty(at);
        }
    }

    fn free_if_empty(&mut self, at: u32) {
        let Account { closed, buffers, .. } = self.accounts[at as usize];
        if closed && buffers == 0 {
            self.free.push(at);
        }
    }

    /// Notes that an account has another buffer.
    #[inline]
    pub(super) fn add_buffer(&mut self, at: u32) {
        self.accounts[at as usize].buffers += 1;
    }

    /// Notes that an account has no longer one of its buffers, which counted for so many bytes.
    /// (What messages bring back that the kernels before these have posted is in no account.)
    #[inline]
    pub(super) fn remove_buffer(&mut self, at: u32, bytes: usize) {
        let Some(account) = self.accounts.get_mut(at as usize).filter(|of| of.buffers > 0) else {
            return;
        };
        account.buffers -= 1;
        let is_closed = account.closed;
        self.count(at, bytes, 0);
        if is_closed {
            self.free_if_empty(at);
        }
    }

    /// Notes that a buffer of an account counts for `now` bytes instead of `before`.
    #[inline]
    pub(super) fn count(&mut self, at: u32, before: usize, now: usize) {
        let account = &mut self.accounts[at as usize];
        account.bytes = (account.bytes + now).saturating_sub(before);
        // The card's own queue pairs are no user's.
        if account.client != 0 {
            let client = &mut self.clients[usize::from(account.client)];
            client.bytes = (client.bytes + now).saturating_sub(before);
        }
    }

    /// May another call begin by a queue pair, to be answered there?
    #[cold]
    pub(super) fn may_begin(&self, at: u32, of: Use) -> bool {
        let few = self.accounts.get(at as usize).is_some_and(|account| account.buffers < FEW);
        few || self.may_have(at, of)
    }

    /// May an account have more bytes? All clients of a user have at most as many as are left for
    /// others, and a queue pair as many as are left to its user, or [`ALWAYS`]. For these there are
    /// as many bytes again.
    #[cold]
    pub(super) fn may_have(&self, at: u32, of: Use) -> bool {
        let Some(Account { client, bytes, .. }) = self.accounts.get(at as usize) else {
            return false;
        };
        let (own, all) = (bytes + of.more, of.all + of.more);
        let of_user = self.of_user(*client).map_or(0, |bytes| bytes + of.more);
        let most = of.limit.saturating_mul(2);
        own + of_user <= of.limit.saturating_sub(all)
            || own <= ALWAYS && all <= most && of_user <= most - all
    }

    /// The bytes that all clients of a client's user have, if it has one.
    fn of_user(&self, client: u16) -> Option<usize> {
        let user = self.user_of(client)?;
        let of_user = self.clients.iter().filter(|client| client.user == Some(user));
        Some(of_user.map(|client| client.bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100 * ALWAYS;
    const CHUNK: usize = ALWAYS / 4;

    /// Takes buffers of so many bytes for a queue pair as long as it may have them. Returns what
    /// it has.
    fn fill(owners: &mut Owners, all: &mut usize, (qpn, client): (u32, u16), each: usize) -> usize {
        let (at, mut own) = (owners.account(qpn, client), 0);
        while owners.may_have(at, Use { all: *all, more: each, limit: LIMIT }) {
            owners.add_buffer(at);
            owners.count(at, 0, each);
            (*all, own) = (*all + each, own + each);
        }
        own
    }

    #[test]
    fn a_queue_pair_leaves_as_much_as_it_has_and_has_a_little_always() {
        let (mut owners, mut all) = (Owners::default(), 0);
        assert_eq!(fill(&mut owners, &mut all, (1, 0), CHUNK), LIMIT / 2);
        assert_eq!(fill(&mut owners, &mut all, (2, 0), CHUNK), LIMIT / 4);
        for qpn in 3..50 {
            assert!(fill(&mut owners, &mut all, (qpn, 0), CHUNK) >= ALWAYS);
        }
        for qpn in 50..1000 {
            fill(&mut owners, &mut all, (qpn, 0), CHUNK);
        }
        assert_eq!(all, 2 * LIMIT, "there is an end");
    }

    #[test]
    fn a_user_leaves_buffers_to_others() {
        let (mut owners, mut all) = (Owners::default(), 0);
        for (client, user) in [(1, 7), (2, 7), (3, 8)] {
            owners.set_user(client, user);
        }
        for qpn in 0..1000 {
            fill(&mut owners, &mut all, (qpn, 1 + (qpn % 2) as u16), CHUNK);
        }
        assert!(all <= LIMIT, "as many as are left for others, of those that each has always");
        for qpn in 1000..1010 {
            assert_eq!(fill(&mut owners, &mut all, (qpn, 3), CHUNK), ALWAYS, "{qpn}");
        }
    }

    #[test]
    fn an_account_ends_when_its_queue_pair_and_its_buffers_have() {
        let mut owners = Owners::default();
        let at = owners.account(5, 0);
        owners.add_buffer(at);
        owners.count(at, 0, 10);
        owners.close(5);
        let next = owners.account(5, 0);
        assert_ne!(at, next, "the number may be another queue pair's");
        owners.remove_buffer(at, 10);
        assert_eq!(owners.account(6, 0), at);
        owners.remove_buffer(at, 10);
        owners.remove_buffer(at + 100, 10);
        owners.close(5);
        assert_eq!(owners.account(7, 0), next);
    }
}
