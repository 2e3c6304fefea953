//! The programs whose rate is measured: constructs of RedN, and plain elements beside them.

use remora::offload::chain::construct::{Condition, Operand, Order, Relation, Writer};
use remora::offload::chain::element::QueueId;
use remora::offload::chain::place::Word;
use remora::offload::chain::program::{Program, Start};
use remora::offload::chain::request::Request;
use remora::offload::chain::verb::Verb;

/// Elements of an `if`: a compare-and-swap, WAIT, ENABLE, the WRITE that it switches on, and WAIT.
pub(in crate::bench) const IF: usize = 5;
/// Elements that a round of the recycled `while` runs: a copy, a compare-and-swap, the exit from
/// the loop, the ENABLE of the next round, an ADD, and what restores the ring.
pub(in crate::bench) const ROUND: usize = 8;

/// `if`s whose condition holds, each a compare-and-swap that switches a WRITE on, in doorbell
/// order; or the rounds of an unrolled `while`. With the queue, all of whose completions show the
/// end.
pub(in crate::bench) fn ifs(count: usize, unrolled: bool) -> (Program, QueueId) {
    let mut program = Program::new();
    let [from, to] = ["from", "to"].map(|name| program.word(name, 7));
    let queue = program.managed("ifs", Start::Running);
    let mut writer = Writer::new(&mut program, queue, Order::Doorbell);
    let five = Operand::Number(5);
    let holds = Condition::Compare(five, Relation::Equal, five);
    let body = |w: &mut Writer<'_>| {
        w.push(Request::write(&[from], to.at));
    };
    if unrolled {
        writer.unrolled_while(count as u32, holds, |w, _| body(w));
    } else {
        (0..count).for_each(|_| {
            writer.if_(holds, body);
        });
    }
    writer.finish();
    (program, queue)
}

/// A loop that counts to `rounds`: a test, an ADD, and the requests that start the next round. With
/// the queue whose first completion shows the end.
pub(in crate::bench) fn recycled(rounds: u64) -> (Program, QueueId) {
    let mut program = Program::new();
    let counter = program.word("counter", 0);
    let start = program.managed("start", Start::Running);
    let mut writer = Writer::new(&mut program, start, Order::Fetch);
    let (left, right) = (Operand::Cell(counter.at), Operand::Number(rounds));
    let more = Condition::Compare(left, Relation::NotEqual, right);
    writer.while_(more, |w| {
        w.push(Request::calc(Verb::Add, counter.at, Word::Number(1)).silent());
    });
    // The request after the loop.
    writer.push(Request::noop());
    let after = writer.queue();
    writer.finish();
    (program, after)
}

/// NOOPs in a managed queue, which the card fetches one by one, as it does the elements of
/// constructs.
pub(in crate::bench) fn noops(count: usize) -> (Program, QueueId) {
    let mut program = Program::new();
    let queue = program.managed("noops", Start::Running);
    (0..count).for_each(|_| {
        program.push(queue, Request::noop());
    });
    (program, queue)
}
