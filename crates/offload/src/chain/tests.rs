//! The constructs on the interpreter and on the card, and what they cost.

use super::card::ChainCard;
use super::construct::{Condition, Operand, Order, Relation, Writer};
use super::model::{End, Model};
use super::place::{Place, Span};
use super::program::{Cost, Program, Start};
use super::request::Request;

const ORDERS: [Order; 2] = [Order::Doorbell, Order::Fetch];

/// Runs a program to its end on the interpreter and on the card; returns the word at `result`.
fn run(program: &Program, result: Span) -> u64 {
    let mut model = Model::new(program, &[]).unwrap();
    let steps = model.run_in_turn(100_000);
    let failed = steps.iter().find(|step| step.end != End::Done);
    assert_eq!(failed, None);
    let word = model.word(program.address(model.layout(), result.at));
    let mut card = ChainCard::new(program, &[]).unwrap();
    assert!(card.run(100_000), "the card comes to rest");
    // Expect: the card has the same result as the interpreter.
    assert_eq!(card.word(program.address(card.layout(), result.at)), word);
    word
}

/// As [`run`], and on a card that fetches ahead, for which the doorbell order is.
fn run_ordered(program: &Program, order: Order, result: Span) -> u64 {
    let word = run(program, result);
    if order == Order::Doorbell {
        let mut ahead = Model::new(program, &[]).unwrap().fetching_ahead();
        let steps = ahead.run_in_turn(100_000);
        assert!(steps.iter().all(|step| step.end == End::Done));
        let at = program.address(ahead.layout(), result.at);
        assert_eq!(ahead.word(at), word, "on a card that fetches ahead");
    }
    word
}

fn compare(x: Operand, relation: Relation, y: Operand) -> Condition {
    Condition::Compare(x, relation, y)
}

fn holds(x: u64, relation: Relation, y: u64) -> bool {
    match relation {
        Relation::Equal => x == y,
        Relation::NotEqual => x != y,
        Relation::Less => x < y,
        Relation::AtLeast => x >= y,
        Relation::Greater => x > y,
        Relation::AtMost => x <= y,
    }
}

const RELATIONS: [Relation; 6] = [
    Relation::Equal,
    Relation::NotEqual,
    Relation::Less,
    Relation::AtLeast,
    Relation::Greater,
    Relation::AtMost,
];

/// A program that `write` writes into one queue that runs at once.
fn program(order: Order, write: impl FnOnce(&mut Writer<'_>, Span)) -> (Program, Span) {
    let mut program = Program::new();
    let result = program.word("result", 0);
    let main = program.managed("main", Start::Running);
    let mut writer = Writer::new(&mut program, main, order);
    write(&mut writer, result);
    writer.finish();
    (program, result)
}

fn add(w: &mut Writer<'_>, to: Span, n: u64) {
    let add = super::place::Word::Number(n);
    w.push(Request::calc(super::verb::Verb::Add, to.at, add));
}

const MAX: u64 = (1 << 48) - 1;

#[test]
fn every_relation_holds_when_it_should() {
    let pairs = [(0, 0), (0, 1), (1, 0), (5, 5), (MAX, 0), (0, MAX), (MAX, MAX), (MAX - 1, MAX)];
    for order in ORDERS {
        for relation in RELATIONS {
            for (x, y) in pairs {
                for cells in 0..4 {
                    let (program, result) = program(order, |w, result| {
                        let cell = |w: &mut Writer<'_>, value, is_cell| {
                            let high = 0xABCD << 48;
                            let word = w.program().word("operand", value | high);
                            if is_cell { Operand::Cell(word.at) } else { Operand::Number(value) }
                        };
                        let x = cell(w, x, cells & 1 != 0);
                        let y = cell(w, y, cells & 2 != 0);
                        w.if_else(
                            compare(x, relation, y),
                            |w| add(w, result, 1),
                            |w| add(w, result, 2),
                        );
                        w.if_(compare(x, relation, y), |w| add(w, result, 4));
                    });
                    let expected = if holds(x, relation, y) { 5 } else { 2 };
                    let got = run_ordered(&program, order, result);
                    assert_eq!(got, expected, "{x} {relation:?} {y} {order:?}");
                }
            }
        }
    }
}

#[test]
fn costs_are_those_of_table_2() {
    let equal = compare(Operand::Number(1), Relation::Equal, Operand::Number(1));
    let cost = |order, write: &dyn Fn(&mut Writer<'_>, Span)| program(order, write).0.cost();
    let table = Cost { copies: 1, atomics: 1, orders: 3 };
    let then = |w: &mut Writer<'_>, result: Span| {
        let one = w.program().word("one", 1);
        w.copy(one, result.at);
    };
    // Expect: an `if`, and each round of an unrolled `while`, costs what RedN's Table 2 says.
    assert_eq!(
        cost(Order::Doorbell, &|w, r| {
            w.if_(equal, |w| then(w, r));
        }),
        table
    );
    let rounds = cost(Order::Doorbell, &|w, r| w.unrolled_while(4, equal, |w, _| then(w, r)));
    assert_eq!(rounds, Cost { copies: 4, atomics: 4, orders: 12 });
    // Managed queues of this card fetch in order without WAIT and ENABLE.
    let fetched = cost(Order::Fetch, &|w, r| {
        w.if_(equal, |w| then(w, r));
    });
    assert_eq!(fetched, Cost { copies: 1, atomics: 1, orders: 0 });
    // A recycled `while` costs at most 3C + 2A + 4E, in each column.
    let (recycled, _) = program(Order::Fetch, |w, _| w.while_(equal, |_| ()));
    let (_, cost) = recycled.constructs().next().unwrap();
    assert!(cost.copies <= 3 && cost.atomics <= 2 && cost.orders <= 4, "{cost}");
}

#[test]
fn recycled_loops_count() {
    for (limit, order) in [(0u64, Order::Fetch), (1, Order::Doorbell), (1000, Order::Fetch)] {
        let (program, result) = program(order, |w, result| {
            let i = w.program().word("i", 0);
            let less = compare(Operand::Cell(i.at), Relation::Less, Operand::Number(limit));
            w.while_(less, |w| {
                add(w, i, 1);
                add(w, result, 3);
            });
            add(w, result, 7);
        });
        assert_eq!(run(&program, result), 3 * limit + 7);
    }
}

#[test]
fn loops_are_left_by_break() {
    let at = |i: Span, n| compare(Operand::Cell(i.at), Relation::Equal, Operand::Number(n));
    for order in ORDERS {
        for stop in [1, 3, 9] {
            let (unrolled, result) = program(order, |w, result| {
                let i = w.program().word("i", 0);
                w.repeat(5, |w, _| {
                    add(w, i, 1);
                    w.if_(at(i, stop), Writer::break_);
                    add(w, result, 1);
                });
                add(w, result, 100);
            });
            assert_eq!(run_ordered(&unrolled, order, result), 100 + (stop - 1).min(5));
            let (recycled, result) = program(order, |w, result| {
                let i = w.program().word("i", 0);
                w.loop_(|w| {
                    add(w, i, 1);
                    w.if_(at(i, stop), Writer::break_);
                    add(w, result, 1);
                });
                add(w, result, 100);
            });
            assert_eq!(run(&recycled, result), 100 + stop - 1);
        }
    }
}

#[test]
fn a_break_may_stand_in_no_block() {
    for order in ORDERS {
        let (unrolled, result) = program(order, |w, result| {
            w.repeat(5, |w, _| {
                add(w, result, 1);
                w.break_();
                add(w, result, 10);
            });
            add(w, result, 100);
        });
        assert_eq!(run_ordered(&unrolled, order, result), 101);
        let (looped, result) = program(order, |w, result| {
            w.loop_(|w| {
                add(w, result, 1);
                w.break_();
            });
            add(w, result, 100);
        });
        assert_eq!(run(&looped, result), 101);
        let (once, result) = program(order, |w, result| {
            let less = compare(Operand::Cell(result.at), Relation::Less, Operand::Number(3));
            w.while_(less, |w| {
                add(w, result, 1);
                w.break_();
                add(w, result, 10);
            });
            add(w, result, 100);
        });
        assert_eq!(run(&once, result), 101);
    }
}

#[test]
fn blocks_nest_and_may_be_long() {
    for order in ORDERS {
        for (x, y) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (program, result) = program(order, |w, result| {
                let x = w.program().word("x", x);
                let y = w.program().word("y", y);
                let is =
                    |v: Span| compare(Operand::Cell(v.at), Relation::Equal, Operand::Number(1));
                w.if_else(
                    is(x),
                    |w| {
                        (0..20).for_each(|_| add(w, result, 1));
                        w.if_else(
                            is(y),
                            |w| (0..40).for_each(|_| add(w, result, 1)),
                            |w| add(w, result, 100),
                        );
                    },
                    |w| {
                        let differs =
                            compare(Operand::Cell(y.at), Relation::NotEqual, Operand::Number(1));
                        w.if_(differs, |w| add(w, result, 1000));
                        add(w, result, 2000);
                    },
                );
            });
            let expected = [[3000, 2000], [120, 60]][x as usize][y as usize];
            assert_eq!(run_ordered(&program, order, result), expected, "{order:?}");
        }
    }
}

#[test]
fn wide_operands_are_compared_piece_by_piece() {
    let wide = *b"sixteen bytes ok";
    for order in ORDERS {
        for flip in [None, Some(0), Some(5), Some(6), Some(11), Some(12), Some(15)] {
            let mut other = wide;
            if let Some(at) = flip {
                other[at] ^= 0x10;
            }
            let (program, result) = program(order, |w, result| {
                let left = w.program().bytes("left", &wide);
                let right = w.program().bytes("right", &other);
                let same = Condition::SameBytes(left, right);
                w.if_else(same, |w| add(w, result, 1), |w| add(w, result, 2));
            });
            let expected = if flip.is_none() { 1 } else { 2 };
            assert_eq!(run_ordered(&program, order, result), expected);
        }
    }
}

#[test]
fn a_recycled_loop_restores_what_its_tests_change() {
    let (program, result) = program(Order::Fetch, |w, result| {
        let i = w.program().word("i", 0);
        let even = w.program().word("even", 0);
        let is = |v: Span, n| compare(Operand::Cell(v.at), Relation::Equal, Operand::Number(n));
        let less = compare(Operand::Cell(i.at), Relation::Less, Operand::Number(64));
        w.while_(less, |w| {
            let (zero, one) = (w.program().word("0", 0), w.program().word("1", 1));
            w.if_else(
                is(even, 0),
                |w| {
                    add(w, result, 1);
                    w.copy(one, even.at);
                },
                |w| {
                    add(w, result, 1000);
                    w.copy(zero, even.at);
                },
            );
            let wide = Condition::SameBytes(zero.part(0, 8), even);
            w.if_(wide, |w| add(w, result, 1_000_000));
            let twenty = compare(Operand::Number(20), Relation::Less, Operand::Cell(i.at));
            w.if_(twenty, |w| add(w, result, 1_000_000_000));
            add(w, i, 1);
        });
    });
    assert_eq!(run(&program, result), 43_032_032_032);
}

#[test]
fn a_number_on_the_left_is_compared_in_each_lap() {
    for relation in RELATIONS {
        for (number, value) in [(5, 5), (5, 4), (4, 5)] {
            let (program, result) = program(Order::Fetch, |w, result| {
                let i = w.program().word("i", 0);
                let y = w.program().word("y", value);
                let less = compare(Operand::Cell(i.at), Relation::Less, Operand::Number(4));
                w.while_(less, |w| {
                    let left = compare(Operand::Number(number), relation, Operand::Cell(y.at));
                    w.if_(left, |w| add(w, result, 1));
                    w.if_else(left, |w| add(w, result, 10), |w| add(w, result, 100));
                    add(w, i, 1);
                });
            });
            let round = if holds(number, relation, value) { 11 } else { 100 };
            assert_eq!(run(&program, result), 4 * round, "{number} {relation:?} {value}");
        }
    }
}

#[test]
fn a_place_may_lie_in_an_import() {
    let mut program = Program::new();
    let import: Place = program.import("table");
    let result = program.word("result", 0);
    let main = program.managed("main", Start::Running);
    program.push(main, Request::read(import.plus(8), &[result]));
    let mut model = Model::new(&program, &[&[7; 16]]).unwrap();
    model.run_in_turn(10);
    let at = program.address(model.layout(), result.at);
    assert_eq!(model.word(at), 0x0707_0707_0707_0707);
}

#[test]
fn mov_has_all_addressing_modes() {
    use super::mov::Pointer;
    use super::place::Word;
    for order in ORDERS {
        let mut result = None;
        let (program, _) = program(order, |w, r| {
            let array = w.program().words("array", &[10, 20, 30, 40].map(Word::Number));
            let pointer = w.program().words("pointer", &[Word::Address(array.word(1).at)]);
            let index = w.program().word("index", 16);
            let out = w.program().words("out", &[Word::Number(0); 4]);
            let memory = array.at;
            w.mov_constant(out.word(0), Word::Number(5));
            w.mov(out.word(1).at, array.word(0));
            let plain = Pointer { register: pointer.at, index: None, memory };
            let indexed = Pointer { index: Some(index.at), ..plain };
            w.load(out.word(2), plain);
            w.load(out.word(3), indexed);
            w.store(indexed, out.word(0));
            w.store(plain, out.word(1));
            w.load(r, indexed);
            result = Some((out, array));
        });
        let (out, array) = result.unwrap();
        let mut model = Model::new(&program, &[]).unwrap();
        if order == Order::Doorbell {
            model = model.fetching_ahead();
        }
        model.run_in_turn(1000);
        let words = |span: Span| {
            let at = program.address(model.layout(), span.at);
            (0..4).map(|i| model.word(at + 8 * i)).collect::<Vec<_>>()
        };
        assert_eq!(words(out), [5, 10, 20, 40]);
        assert_eq!(words(array), [10, 10, 30, 5]);
        let costs: Vec<_> = program.constructs().map(|(_, cost)| cost).collect();
        let barrier = if order == Order::Doorbell { 2u32 } else { 0 };
        let cost = |copies, atomics, barriers| Cost { copies, atomics, orders: barriers * barrier };
        assert_eq!(costs[..4], [cost(1, 0, 0), cost(1, 0, 0), cost(2, 0, 1), cost(3, 1, 2)]);
    }
}

#[test]
fn a_failure_names_a_request_of_its_queue_or_the_queue_alone() {
    use super::element::Field;
    use super::place::Word;
    for (id, named) in [(None, true), (Some(999_999), false), (Some(0), false)] {
        let mut program = Program::new();
        let one = program.word("one", 1);
        let other = program.managed("other", Start::Asleep);
        // The first request of the program, and in another queue than the one that fails.
        program.push(other, Request::noop());
        let main = program.managed("main", Start::Running);
        let fails = program.label("fails");
        if let Some(id) = id {
            let to = fails.field(Field::WrId).at;
            program.push(main, Request::write_constant(Word::Number(id), to));
        }
        let to = fails.field(Field::Remote).at;
        program.push(main, Request::write_constant(Word::Number(1), to));
        program.put(main, fails, Request::write(&[one], one.at));
        let mut card = ChainCard::new(&program, &[]).unwrap();
        assert!(card.run(1000));
        let failures = card.failures();
        assert_eq!(failures.len(), 1);
        assert_eq!((failures[0].queue, failures[0].label), (main, named.then_some(fails)));
        let told = program.failure(&failures[0]);
        let name = if named { "fails: " } else { "main: " };
        assert!(told.starts_with(name), "{told}");
    }
}

#[test]
fn completions_are_those_of_requests_that_count() {
    let mut program = Program::new();
    let queue = program.managed("queue", Start::Running);
    for silent in [false, true, true, false] {
        let noop = Request::noop();
        program.push(queue, if silent { noop.silent() } else { noop });
    }
    let counts: Vec<u64> = (0..6).map(|index| program.completions(queue, index)).collect();
    assert_eq!(counts, [1, 1, 1, 2, 2, 2]);
    let empty = program.managed("empty", Start::Running);
    assert_eq!(program.completions(empty, 0), 0);
}
