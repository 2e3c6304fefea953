//! Hash look-up (RedN Fig. 9): buckets are read into the requests that test them.
//!
//! The client sends its key and the addresses of the key's buckets. A READ of a bucket puts each
//! slot's key beside the op-code of a WRITE that is off, and the slot's pointer and length into
//! that WRITE's own bytes. A compare-and-swap switches the WRITE on if the slot's key is the
//! client's, and the WRITE puts pointer and length into the answer.

use super::super::construct::Writer;
use super::super::element::{Field, Label, QueueId};
use super::super::place::{Place, Span, Word};
use super::super::program::{Program, Start};
use super::super::request::{Count, Request};
use super::super::verb::Verb;
use super::table::SLOT;
use super::{Service, key_bytes};

/// A look-up in tables of one shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// Buckets that may hold a key: 1 or 2.
    pub buckets: usize,
    /// Slots of a bucket: 1 to 5, as many as the entries of a READ can scatter.
    pub slots: usize,
    /// Looks at each bucket in a queue of its own, and not at one after the other.
    pub parallel: bool,
}

impl Lookup {
    /// Hopscotch buckets for two hash functions, as in RedN's Fig. 9.
    pub const HOPSCOTCH: Lookup = Lookup { buckets: 2, slots: 1, parallel: false };
    /// MemC3's cuckoo table: two buckets of four slots.
    pub const CUCKOO: Lookup = Lookup { buckets: 2, slots: 4, parallel: false };

    /// The same look-up over two queues.
    #[must_use]
    pub const fn in_parallel(self) -> Lookup {
        Lookup { parallel: true, ..self }
    }

    /// The message of a client that looks for `key` in the buckets at these addresses.
    pub fn message(&self, key: u64, buckets: &[u64]) -> Vec<u8> {
        let keys = self.buckets * self.slots;
        let mut message = key_bytes(key).repeat(keys);
        for bucket in buckets.iter().cycle().take(self.buckets) {
            message.extend_from_slice(&bucket.to_le_bytes());
        }
        message
    }

    /// The program for one connection.
    ///
    /// # Panics
    /// If there are more than 2 buckets or 5 slots, or none.
    pub fn program(&self) -> Program {
        assert!((1..=2).contains(&self.buckets) && (1..=5).contains(&self.slots), "{self:?}");
        let mut service = Service::new();
        let searches: Vec<Search> =
            (0..self.buckets).map(|_| Search::new(&mut service.program, self.slots)).collect();
        let expected = searches.iter().flat_map(|search| &search.slots);
        let expected = expected.map(|(test, _)| test.field(Field::CompareId));
        let addresses = searches.iter().map(|search| search.read.field(Field::Remote));
        let pieces: Vec<Span> = expected.chain(addresses).collect();
        service.receive(&pieces);
        let serve = service.program.managed("serve", Start::Running);
        let (own, others) = searches.split_at(if self.parallel { 1 } else { searches.len() });
        let helpers: Vec<(QueueId, u64)> =
            others.iter().map(|search| search.helper(&mut service)).collect();
        let (wait, clear, ready) = (service.wait(), service.clear(), service.ready());
        let (send, answer, table, scratch) =
            (service.send(), service.answer(), service.table, service.scratch);
        Writer::forever(&mut service.program, serve, |w| {
            w.push(wait);
            w.push(clear);
            for (helper, lap) in &helpers {
                w.push(Request::enable(*helper, Count::Number(*lap)).raised_by(*lap));
            }
            for search in own {
                search.write(w, table, answer, scratch);
            }
            for (helper, _) in &helpers {
                w.push(Request::wait(*helper, Count::Number(1)));
            }
            w.push(ready);
            w.push(send);
        });
        service.program
    }
}

/// The requests that look at a bucket.
struct Search {
    read: Label,
    /// By slot: the request that tests its key, and the request that the test switches on.
    slots: Vec<(Label, Label)>,
}

impl Search {
    fn new(program: &mut Program, slots: usize) -> Search {
        let read = program.label("bucket");
        let slot = |_| (program.label("key?"), program.label("found"));
        Search { read, slots: (0..slots).map(slot).collect() }
    }

    /// The requests for one bucket. A slot of the table is the value's pointer and length, then a
    /// key of 6 bytes and 2 unused bytes.
    fn requests(&self, table: Place, answer: Place, scratch: Span) -> Vec<(Label, Request)> {
        let mut into = Vec::new();
        for (_, found) in &self.slots {
            into.push(found.field(Field::Addr(0)).part(0, 16));
            into.push(found.field(Field::Id));
            into.push(scratch.part(0, SLOT as u32 - 22));
        }
        let mut requests = vec![(self.read, Request::read(table, &into).silent())];
        for &(test, found) in &self.slots {
            let (off, on) = (Word::Head(Verb::Noop, 0), Word::Head(Verb::Write, 0));
            let cas = Request::compare_swap(found.field(Field::Head).at, off, on);
            requests.push((test, cas.silent()));
            let found_it = Request::write_inline(Word::Number(0), 12, answer);
            requests.push((found, found_it.silent().off()));
        }
        requests
    }

    fn write(&self, w: &mut Writer<'_>, table: Place, answer: Place, scratch: Span) {
        for (label, request) in self.requests(table, answer, scratch) {
            w.put(label, request);
        }
        for (_, found) in &self.slots {
            w.put_back(*found);
        }
    }

    /// Creates a queue for this bucket that runs a lap each time it is enabled, and counts laps.
    /// Returns the queue and the elements of a lap.
    fn helper(&self, service: &mut Service) -> (QueueId, u64) {
        let queue = service.program.managed("helper", Start::Asleep);
        let (table, answer, scratch) = (service.table, service.answer(), service.scratch);
        let mut writer =
            Writer::new(&mut service.program, queue, super::super::construct::Order::Fetch);
        self.write(&mut writer, table, answer, scratch);
        let lap = writer.lap();
        writer.finish();
        (queue, lap)
    }
}
