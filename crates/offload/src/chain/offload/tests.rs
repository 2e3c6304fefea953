//! Lookups by chain: answers, walks of lists, and what a client can reach.

use super::super::card::ChainCard;
use super::super::model::{End, Model};
use super::lookup::Lookup;
use super::table::{Table, Value};
use super::*;

/// A server with a table and values, on a card and on the interpreter. The interpreter chooses at
/// random which queue runs next.
struct Server {
    model: Model,
    card: ChainCard,
    random: u64,
}

const VALUE_LEN: usize = 40;

/// The `i`th value.
fn value(i: usize) -> Vec<u8> {
    vec![(i % 255) as u8 + 1; VALUE_LEN - i % 7]
}

impl Server {
    /// `fill` makes the table's bytes from the addresses of the table and of the values.
    fn new(program: &Program, table: usize, fill: impl FnOnce(u64, u64) -> Vec<u8>) -> Server {
        let values: Vec<u8> = (0..256)
            .flat_map(|i| {
                let mut value = value(i);
                value.resize(VALUE_LEN, 0);
                value
            })
            .collect();
        let mut model = Model::new(program, &[&vec![0; table], &values]).unwrap();
        let mut card = ChainCard::new(program, &[&vec![0; table], &values]).unwrap();
        let [at, values] = [0, 1].map(|i| model.layout().imports[i].addr);
        // The card and the interpreter use the same layout.
        assert_eq!(card.layout().imports[0].addr, at);
        let bytes = fill(at, values);
        assert_eq!(bytes.len(), table);
        model.set(at, &bytes);
        card.set(at, &bytes);
        Server { model, card, random: 1 }
    }

    /// Sends one message and returns its one answer.
    fn ask(&mut self, message: &[u8]) -> Vec<u8> {
        self.model.deliver(message);
        let random = &mut self.random;
        let steps = self.model.run(100_000, |_| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*random >> 33) as usize
        });
        let failed = steps.iter().find(|step| step.end != End::Done);
        assert_eq!(failed, None);
        let mut sent = self.model.take_sent();
        assert_eq!(sent.len(), 1, "one answer");
        self.card.send(message).unwrap();
        assert!(self.card.run(10_000));
        assert_eq!(self.card.answers(), sent);
        sent.remove(0)
    }
}

fn at(values: u64, i: usize) -> Value {
    Value { addr: values + (i * VALUE_LEN) as u64, len: value(i).len() as u32 }
}

#[test]
fn lookups_answer_message_after_message() {
    for lookup in [Lookup::HOPSCOTCH, Lookup::CUCKOO] {
        for lookup in [lookup, lookup.in_parallel()] {
            let mut table = Table::new(if lookup.slots == 1 { 256 } else { 32 }, lookup.slots);
            // As full as MemC3's tables get; less full with one slot for each bucket.
            let keys = if lookup.slots == 1 { 60 } else { 115 };
            let key = |i: usize| 0xA5A5_0000_0001u64.wrapping_mul(i as u64 + 1) & 0xFFFF_FFFF_FFFF;
            let program = lookup.program();
            let mut base = 0;
            let mut server = Server::new(&program, table.bytes().len(), |at_table, values| {
                base = at_table;
                (0..keys).for_each(|i| table.insert(key(i), at(values, i)).unwrap());
                table.bytes()
            });
            for round in 0..3 {
                for i in 0..keys + 20 {
                    let key = key(i);
                    let message = lookup.message(key, &table.addresses(base, key));
                    let expected = if i < keys { value(i) } else { Vec::new() };
                    assert_eq!(server.ask(&message), expected, "{lookup:?} {round} {i}");
                }
            }
        }
    }
}

#[test]
fn lists_are_walked_unrolled_and_with_break() {
    for (name, program) in [("unrolled", list::unrolled(8)), ("walking", list::walking())] {
        let mut base = 0;
        let mut server = Server::new(&program, 9 * list::NODE as usize, |at_list, values| {
            base = at_list;
            let values: Vec<_> = (0..8).map(|i| (100 + i as u64, at(values, i))).collect();
            list::nodes(at_list, &values)
        });
        for i in (0..40).map(|i| i * 5 % 11) {
            let expected = if i < 8 { value(i) } else { Vec::new() };
            let message = list::message(100 + i as u64, base);
            assert_eq!(server.ask(&message), expected, "{name} {i}");
        }
    }
}

#[test]
fn break_saves_work_and_costs_little() {
    let count = |program: &Program, key| {
        let mut server = Server::new(program, 9 * list::NODE as usize, |base, values| {
            let values: Vec<_> = (0..8).map(|i| (100 + i as u64, at(values, i))).collect();
            list::nodes(base, &values)
        });
        let base = server.model.layout().imports[0].addr;
        server.model.deliver(&list::message(key, base));
        server.model.run_in_turn(10_000).len()
    };
    let (unrolled, walking) = (list::unrolled(8), list::walking());
    // Expect: without break the work is the same wherever the key is; with break it depends on
    // that.
    assert_eq!(count(&unrolled, 100), count(&unrolled, 107));
    assert!(count(&walking, 100) + 5 * 7 < count(&walking, 107));
    assert!(count(&walking, 100) < count(&unrolled, 100));
}

#[test]
fn a_client_reaches_only_what_the_programs_keys_open() {
    let lookup = Lookup::HOPSCOTCH;
    let program = lookup.program();
    let mut server = Server::new(&program, 48, |_, _| vec![0; 48]);
    let outside = server.model.layout().data.addr;
    server.model.deliver(&lookup.message(5, &[outside, outside]));
    let steps = server.model.run_in_turn(1000);
    let last = steps.iter().find(|step| step.end != End::Done).unwrap();
    assert_eq!(last.end, End::Failed(super::super::model::Fault::Memory));
    assert!(server.model.take_sent().is_empty());
}
