//! Which object of the card belongs to which session, and what a session may still make.
//!
//! A session that has as many as its quota admits is told so as by a card that is full (`guarded`).
//! Clients and sessions are admitted in `admission`, loans in `answers`.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};

use remora_nic::nic::InUse;
use remora_nic::{Config, Key, Xrcd};

use crate::message::{Object, Quotas};

/// Who owns what: all objects that sessions have made.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// By the session, too, if it numbers the objects itself: see [`place`].
    owned: HashMap<(Option<u16>, Object), Owned>,
    /// Sessions that hold an object beside its owner: XRC domains that a file names, and targets.
    others: HashMap<Object, Vec<u16>>,
    /// The XRC domains of targets and shared receive queues.
    within: HashMap<Object, Xrcd>,
    /// What each session holds, alone or with others, in the order in which it is destroyed: to
    /// look at some of one session's objects takes no longer where there are many others.
    held: HashMap<u16, BTreeSet<Held>>,
    /// What all sessions have together.
    pub(super) all: Usage,
}

/// An object that a session holds.
type Held = (Kind, Object);

fn held(object: Object) -> Held {
    (Kind::of(object), object)
}

/// Pieces of card memory are named by addresses of their session's; all else has numbers that are
/// the card's.
fn place(session: u16, object: Object) -> (Option<u16>, Object) {
    (matches!(object, Object::Dm(_)).then_some(session), object)
}

/// An object's owner, and what it takes of the owner's quotas.
#[derive(Clone, Copy, Debug)]
struct Owned {
    session: u16,
    /// Bytes of a region or of lent memory, entries of a completion queue.
    amount: u64,
    /// The lent memory that a region is in.
    lent: Option<u32>,
}

/// What a session has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Objects of each [`Kind`].
    counts: [u32; KINDS],
    /// Bytes of its regions.
    pub(crate) registered_bytes: u64,
    /// Bytes of memory files that it lends.
    pub(crate) lent_bytes: u64,
    /// Entries of its completion queues.
    pub(crate) entries: u64,
    /// Its kernels, deployed and bound ones.
    pub(crate) kernels: u32,
    /// Bytes of their modules.
    pub(crate) module_bytes: u64,
}

/// What kind of object it is, in the order in which a session's are destroyed: connections and
/// listeners, queue pairs, windows, regions, then what these stand on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Connection,
    Listener,
    Sidr,
    Qp,
    Mw,
    Mr,
    Srq,
    Cq,
    Ah,
    Budget,
    Xrcd,
    Pd,
    Dm,
    Lent,
}

const KINDS: usize = Kind::Lent as usize + 1;

/// Kinds that a quota of their own does not bound.
const OTHERS: [Kind; 8] = [
    Kind::Connection,
    Kind::Listener,
    Kind::Sidr,
    Kind::Ah,
    Kind::Budget,
    Kind::Xrcd,
    Kind::Pd,
    Kind::Dm,
];

impl Kind {
    fn of(object: Object) -> Kind {
        match object {
            Object::Pd(_) => Kind::Pd,
            Object::Cq(_) => Kind::Cq,
            Object::Qp(_) => Kind::Qp,
            Object::Srq(_) => Kind::Srq,
            Object::Xrcd(_) => Kind::Xrcd,
            Object::Mr(_) => Kind::Mr,
            Object::Mw(_) => Kind::Mw,
            Object::Dm(_) => Kind::Dm,
            Object::Ah(_) => Kind::Ah,
            Object::Budget(_) => Kind::Budget,
            Object::Listener(_) => Kind::Listener,
            Object::Connection(_) => Kind::Connection,
            Object::Sidr(_) => Kind::Sidr,
            Object::Lent(_) => Kind::Lent,
        }
    }
}

/// How many objects of each kind the card has; of some there is no such number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pools([usize; KINDS]);

impl Default for Pools {
    fn default() -> Pools {
        Pools([usize::MAX; KINDS])
    }
}

impl Pools {
    pub(super) fn new(card: &Config) -> Pools {
        let mut pools = Pools::default();
        for (kind, most) in [
            (Kind::Connection, card.cm.max_connections),
            (Kind::Listener, card.cm.max_listeners),
            (Kind::Sidr, card.cm.max_resolutions),
            (Kind::Qp, card.max_qps),
            (Kind::Mw, card.max_mws),
            (Kind::Mr, card.max_mrs),
            (Kind::Srq, card.max_srqs),
            (Kind::Cq, card.max_cqs),
            (Kind::Ah, card.max_ahs),
            (Kind::Budget, card.max_budgets),
            (Kind::Xrcd, card.max_xrcds),
            (Kind::Pd, card.max_pds),
        ] {
            pools.0[kind as usize] = most;
        }
        pools
    }

    pub(super) fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }
}

/// May a user have another of something that there are `most` of, and all users have `all` of? Each
/// user has at most as many as are left, so that there are some for others; otherwise returns how
/// many the user has. To count those takes time, and they are no more than all.
pub(super) fn leaves_some(
    most: usize,
    all: usize,
    mine: impl FnOnce() -> usize,
) -> Result<(), usize> {
    let left = most.saturating_sub(all);
    if all < left {
        return Ok(());
    }
    let mine = mine();
    if mine < left { Ok(()) } else { Err(mine) }
}

/// A kind of object that a quota bounds, and how much of it is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A region of so many bytes.
    Region(u64),
    /// A window.
    Window,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// A completion queue of so many entries.
    Completions(u64),
    /// So many more entries of a completion queue.
    Entries(u64),
    /// Lent memory of so many bytes.
    Lent(u64),
    /// So many more bytes of kernels' modules.
    Module(u64),
    /// A kernel.
    Kernel,
    /// Anything else, of this kind.
    Other(Kind),
}

impl Ask {
    /// For an object that has no quota of its kind's own.
    pub(crate) fn for_one(object: Object) -> Ask {
        Ask::Other(Kind::of(object))
    }

    /// What kind of the card's objects is asked for, if one is.
    pub(crate) fn kind(self) -> Option<Kind> {
        match self {
            Ask::Region(_) => Some(Kind::Mr),
            Ask::Window => Some(Kind::Mw),
            Ask::Qp => Some(Kind::Qp),
            Ask::Srq => Some(Kind::Srq),
            Ask::Completions(_) => Some(Kind::Cq),
            Ask::Other(kind) => Some(kind),
            Ask::Entries(_) | Ask::Lent(_) | Ask::Module(_) | Ask::Kernel => None,
        }
    }
}

impl Usage {
    /// Objects of a kind.
    pub(crate) fn of(&self, kind: Kind) -> usize {
        self.counts[kind as usize] as usize
    }

    /// Objects of the kind that `sample` is of.
    pub(crate) fn count(&self, sample: Object) -> u32 {
        self.counts[Kind::of(sample) as usize]
    }

    /// Does what is asked for fit the quotas? Otherwise returns the limit.
    pub(crate) fn admits(&self, ask: Ask, quotas: &Quotas) -> Result<(), usize> {
        let below = |used: u64, limit: u64| if used < limit { Ok(()) } else { Err(limit as usize) };
        let fits = |used: u64, more: u64, limit: u64| match used.checked_add(more) {
            Some(sum) if sum <= limit => Ok(()),
            _ => Err(limit as usize),
        };
        let counts = |kinds: &[Kind]| {
            kinds.iter().map(|kind| u64::from(self.counts[*kind as usize])).sum::<u64>()
        };
        let regions = || below(counts(&[Kind::Mr, Kind::Mw]), u64::from(quotas.regions));
        match ask {
            Ask::Region(bytes) => {
                regions()?;
                fits(self.registered_bytes, bytes, quotas.memory_bytes)
            }
            Ask::Window => regions(),
            Ask::Qp | Ask::Srq => {
                below(counts(&[Kind::Qp, Kind::Srq]), u64::from(quotas.queue_pairs))
            }
            Ask::Completions(entries) => {
                below(counts(&[Kind::Cq]), u64::from(quotas.completion_queues))?;
                fits(self.entries, entries, quotas.entries)
            }
            Ask::Entries(more) => fits(self.entries, more, quotas.entries),
            Ask::Lent(bytes) => {
                below(counts(&[Kind::Lent]), u64::from(quotas.loans))?;
                fits(self.kept_bytes(), bytes, quotas.memory_bytes)
            }
            Ask::Module(bytes) => fits(self.kept_bytes(), bytes, quotas.memory_bytes),
            Ask::Kernel | Ask::Other(_) => {
                below(counts(&OTHERS) + u64::from(self.kernels), u64::from(quotas.others))
            }
        }
    }

    /// Notes a kernel that the session has, and the bytes of its module.
    pub(crate) fn add_kernel(&mut self, module_bytes: u64) {
        self.kernels += 1;
        self.module_bytes += module_bytes;
    }

    /// Notes that it has gone.
    pub(crate) fn remove_kernel(&mut self, module_bytes: u64) {
        self.kernels = self.kernels.saturating_sub(1);
        self.module_bytes = self.module_bytes.saturating_sub(module_bytes);
    }

    /// Bytes that the daemon keeps for the session.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.lent_bytes.saturating_add(self.module_bytes)
    }

    /// The session's part of what is in use on the card.
    pub(crate) fn in_use(&self) -> InUse {
        let of = |kind| self.of(kind);
        let mut in_use = InUse::default();
        (in_use.pds, in_use.cqs, in_use.qps) = (of(Kind::Pd), of(Kind::Cq), of(Kind::Qp));
        (in_use.srqs, in_use.xrcds) = (of(Kind::Srq), of(Kind::Xrcd));
        (in_use.mrs, in_use.mws) = (of(Kind::Mr), of(Kind::Mw));
        (in_use.ahs, in_use.budgets) = (of(Kind::Ah), of(Kind::Budget));
        in_use
    }

    fn change(&mut self, object: Object, amount: u64, by: impl Fn(u64, u64) -> u64) {
        let count = &mut self.counts[Kind::of(object) as usize];
        *count = by(u64::from(*count), 1) as u32;
        match object {
            Object::Mr(_) => self.registered_bytes = by(self.registered_bytes, amount),
            Object::Lent(_) => self.lent_bytes = by(self.lent_bytes, amount),
            Object::Cq(_) => self.entries = by(self.entries, amount),
            _ => {}
        }
    }
}

/// The object of a window, whatever its key's low 8 bits are now.
pub(crate) fn window(key: Key) -> Object {
    Object::Mw(key & !0xff)
}

impl Objects {
    /// The session that owns an object, which is no piece of card memory.
    pub(crate) fn owner(&self, object: Object) -> Option<u16> {
        self.owned.get(&(None, object)).map(|owned| owned.session)
    }

    /// Notes that `session`, whose usage is `usage`, has made an object.
    pub(crate) fn add(
        &mut self,
        session: u16,
        usage: &mut Usage,
        object: Object,
        (amount, lent): (u64, Option<u32>),
    ) {
        if self.owned.insert(place(session, object), Owned { session, amount, lent }).is_none() {
            for usage in [usage, &mut self.all] {
                usage.change(object, amount, |sum, more| sum + more);
            }
        }
        self.held.entry(session).or_default().insert(held(object));
    }

    /// Notes that a session holds an object no more.
    fn drop_held(&mut self, session: u16, object: Object) {
        if let Some(of) = self.held.get_mut(&session) {
            of.remove(&held(object));
            if of.is_empty() {
                self.held.remove(&session);
            }
        }
    }

    /// Notes that an object of `session`, whose usage is `usage`, was destroyed; returns the number
    /// of the lent memory that it was in.
    pub(crate) fn remove(
        &mut self,
        session: u16,
        usage: &mut Usage,
        object: Object,
    ) -> Option<u32> {
        self.within.remove(&object);
        let owned = self.owned.remove(&place(session, object))?;
        self.drop_held(owned.session, object);
        for usage in [usage, &mut self.all] {
            usage.change(object, owned.amount, u64::saturating_sub);
        }
        owned.lent
    }

    /// Does the session have the object, alone or with others?
    pub(crate) fn holds(&self, session: u16, object: Object) -> bool {
        let owned = self.owned.get(&place(session, object));
        owned.is_some_and(|owned| owned.session == session) || self.is_other(session, object)
    }

    fn is_other(&self, session: u16, object: Object) -> bool {
        self.others.get(&object).is_some_and(|others| others.contains(&session))
    }

    /// Makes a session, whose usage is `usage`, a holder of another one's object.
    pub(crate) fn share(&mut self, session: u16, usage: &mut Usage, object: Object) {
        if self.owner(object).is_some() && !self.holds(session, object) {
            self.others.entry(object).or_default().push(session);
            self.held.entry(session).or_default().insert(held(object));
            for usage in [usage, &mut self.all] {
                usage.change(object, 0, |sum, more| sum + more);
            }
        }
    }

    /// The session holds the object no more. Returns its owner, who may be another one than before;
    /// `None` if nobody else holds it, so that it is to be destroyed.
    pub(crate) fn leave(&mut self, session: u16, usage: &mut Usage, object: Object) -> Option<u16> {
        let others = self.others.get_mut(&object)?;
        let owned = self.owned.get_mut(&(None, object))?;
        if owned.session == session {
            owned.session = others.remove(0);
        } else {
            others.retain(|other| *other != session);
        }
        let owner = owned.session;
        if others.is_empty() {
            self.others.remove(&object);
        }
        self.drop_held(session, object);
        for usage in [usage, &mut self.all] {
            usage.change(object, 0, u64::saturating_sub);
        }
        Some(owner)
    }

    /// Notes the XRC domain of a target or a shared receive queue.
    pub(crate) fn set_within(&mut self, object: Object, xrcd: Xrcd) {
        self.within.insert(object, xrcd);
    }

    /// How many objects of a session are in an XRC domain.
    pub(crate) fn users_within(&self, session: u16, xrcd: Xrcd) -> usize {
        let Some(of) = self.held.get(&session) else { return 0 };
        let targets = of.range(held(Object::Qp(0))..=held(Object::Qp(u32::MAX)));
        let receives = of.range(held(Object::Srq(0))..=held(Object::Srq(u32::MAX)));
        targets.chain(receives).filter(|(_, object)| self.is_within(*object, xrcd)).count()
    }

    /// Is the target in the XRC domain?
    pub(crate) fn is_within(&self, object: Object, xrcd: Xrcd) -> bool {
        self.within.get(&object) == Some(&xrcd)
    }

    /// Bytes or entries of an object.
    pub(crate) fn amount(&self, object: Object) -> u64 {
        self.owned.get(&(None, object)).map_or(0, |owned| owned.amount)
    }

    /// The number of the lent memory that a region is in.
    pub(crate) fn lent(&self, object: Object) -> Option<u32> {
        self.owned.get(&(None, object))?.lent
    }

    /// Objects of a session behind one of them, or from the first on, `most` at most: those first
    /// that others stand on least.
    pub(crate) fn page(&self, session: u16, behind: Option<Object>, most: usize) -> Vec<Object> {
        let Some(of) = self.held.get(&session) else { return Vec::new() };
        let from = behind.map_or(Unbounded, |object| Excluded(held(object)));
        of.range((from, Unbounded)).take(most).map(|(_, object)| *object).collect()
    }

    /// All of them.
    pub(crate) fn of(&self, session: u16) -> Vec<Object> {
        self.page(session, None, usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};

    #[test]
    fn quotas_bound_counts_and_sums() {
        let quotas = Quotas {
            memory_bytes: 100,
            regions: 2,
            loans: 1,
            queue_pairs: 1,
            completion_queues: 1,
            entries: 10,
            others: 1,
            ..Quotas::default()
        };
        let (mut objects, mut usage) = (Objects::default(), Usage::default());
        assert_eq!(usage.admits(Ask::Region(101), &quotas), Err(100));
        assert_eq!(usage.admits(Ask::Region(u64::MAX), &quotas), Err(100));
        objects.add(3, &mut usage, Object::Mr(0x100), (60, Some(1)));
        assert_eq!(usage.admits(Ask::Region(41), &quotas), Err(100));
        assert_eq!(usage.admits(Ask::Region(40), &quotas), Ok(()));
        objects.add(3, &mut usage, window(0x2ff), (0, None));
        assert_eq!(usage.admits(Ask::Lent(1), &quotas), Ok(()));
        objects.add(3, &mut usage, Object::Lent(1), (1, None));
        assert_eq!(usage.admits(Ask::Lent(0), &quotas), Err(1));
        usage.add_kernel(50);
        assert_eq!(usage.admits(Ask::Module(49), &quotas), Ok(()), "beside one lent byte");
        assert_eq!(usage.admits(Ask::Module(50), &quotas), Err(100));
        usage.remove_kernel(50);
        assert_eq!(usage.admits(Ask::Window, &quotas), Err(2));
        objects.add(3, &mut usage, Object::Cq(1), (10, None));
        assert_eq!(usage.admits(Ask::Completions(1), &quotas), Err(1));
        assert_eq!(usage.admits(Ask::Entries(1), &quotas), Err(10));
        objects.add(3, &mut usage, Object::Srq(1), (0, None));
        assert_eq!(usage.admits(Ask::Qp, &quotas), Err(1));
        objects.add(3, &mut usage, Object::Ah(1), (0, None));
        assert_eq!(usage.admits(Ask::Other(Kind::Pd), &quotas), Err(1));
        assert_eq!((objects.owner(Object::Cq(1)), objects.owner(Object::Cq(2))), (Some(3), None));
        let in_use = usage.in_use();
        assert_eq!((in_use.mrs, in_use.mws, in_use.cqs, in_use.srqs), (1, 1, 1, 1));

        let all = objects.of(3);
        let order: Vec<Kind> = all.iter().map(|object| Kind::of(*object)).collect();
        assert_eq!(order, [Kind::Mw, Kind::Mr, Kind::Srq, Kind::Cq, Kind::Ah, Kind::Lent]);
        for object in all {
            let lent = (object == Object::Mr(0x100)).then_some(1);
            assert_eq!(objects.remove(3, &mut usage, object), lent);
            assert_eq!(objects.remove(3, &mut usage, object), None);
        }
        assert_eq!(usage, Usage::default());
        assert!(objects.of(3).is_empty());
    }

    #[test]
    fn card_memory_is_named_by_each_session_by_itself() {
        let (mut objects, mut one, mut two) = <(Objects, Usage, Usage)>::default();
        let piece = Object::Dm(4096);
        objects.add(1, &mut one, piece, (64, None));
        objects.add(2, &mut two, piece, (128, None));
        assert!(objects.holds(1, piece) && objects.holds(2, piece));
        objects.remove(2, &mut two, piece);
        assert!(objects.holds(1, piece) && !objects.holds(2, piece));
        assert_eq!((objects.of(1), objects.of(2)), (vec![piece], vec![]));
        assert_eq!((one.count(piece), two.count(piece)), (1, 0));
    }

    #[test]
    fn what_several_hold_goes_with_the_last() {
        let (mut objects, mut one, mut two) = <(Objects, Usage, Usage)>::default();
        let target = Object::Qp(7);
        objects.add(1, &mut one, target, (0, None));
        objects.share(2, &mut two, target);
        objects.share(2, &mut two, target);
        objects.share(3, &mut Usage::default(), Object::Qp(8));
        assert!(objects.holds(1, target) && objects.holds(2, target));
        assert!(!objects.holds(3, target) && !objects.holds(3, Object::Qp(8)));
        assert_eq!((one.count(target), two.count(target)), (1, 1));
        assert_eq!(objects.of(2), [target]);
        assert_eq!(objects.leave(1, &mut one, target), Some(2), "the other one inherits it");
        assert_eq!((objects.owner(target), objects.holds(1, target)), (Some(2), false));
        assert_eq!(objects.leave(2, &mut two, target), None, "it is the last");
        objects.remove(2, &mut two, target);
        assert_eq!((one, two), (Usage::default(), Usage::default()));
    }

    /// The session has the object no more, which is destroyed if nobody else has it.
    fn give_up(objects: &mut Objects, usage: &mut Usage, session: u16, object: Object) {
        let is_own = matches!(object, Object::Dm(_));
        if is_own || objects.leave(session, usage, object).is_none() {
            objects.remove(session, usage, object);
        }
    }

    fn in_pages(objects: &Objects, session: u16) -> Vec<Object> {
        let mut all: Vec<Object> = Vec::new();
        loop {
            let page = objects.page(session, all.last().copied(), 7);
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    /// To look at a session's objects is to look at its own only.
    #[test]
    fn a_sessions_objects_are_found_beside_many_of_others() {
        let (mut objects, mut usages) = (Objects::default(), [Usage::default(); 4]);
        let all: Vec<Object> =
            (0..30).flat_map(|n| [Object::Qp(n), Object::Dm(n.into()), Object::Srq(n)]).collect();
        let mut draw = 1u64;
        let xrcd: Xrcd = decode(&encode(&1u32)).unwrap();
        for _ in 0..20_000 {
            draw = draw.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            let [object, session, what] =
                [(33, all.len() as u64), (45, 4), (54, 3)].map(|(at, most)| (draw >> at) % most);
            let (object, session) = (all[object as usize], session as u16);
            let usage = &mut usages[usize::from(session)];
            match what {
                0 if !objects.owned.contains_key(&place(session, object)) => {
                    objects.add(session, usage, object, (0, None));
                    if draw >> 60 < 8 && !matches!(object, Object::Dm(_)) {
                        objects.set_within(object, xrcd);
                    }
                }
                1 if !matches!(object, Object::Dm(_)) => objects.share(session, usage, object),
                2 if objects.holds(session, object) => {
                    give_up(&mut objects, usage, session, object)
                }
                _ => {}
            }
            for session in 0..4 {
                let held = objects.held.get(&session).map_or(0, BTreeSet::len);
                let has = |object: &&Object| objects.holds(session, **object);
                assert_eq!(all.iter().filter(has).count(), held);
                let is_within = |object: &&Object| objects.is_within(**object, xrcd);
                let users = all.iter().filter(has).filter(is_within).count();
                assert_eq!(objects.users_within(session, xrcd), users);
                assert!(in_pages(&objects, session).iter().all(|of| objects.holds(session, *of)));
                assert_eq!(in_pages(&objects, session), objects.of(session));
            }
        }
        for session in 0..4 {
            for object in objects.of(session) {
                give_up(&mut objects, &mut usages[usize::from(session)], session, object);
            }
        }
        assert!(objects.held.is_empty(), "nothing is kept of sessions that have nothing");
        assert_eq!(usages, [Usage::default(); 4]);
    }
}
