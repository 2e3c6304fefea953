//! From [`Item`]s to a program: resolves names and writes requests.

use std::collections::BTreeMap;

use super::super::construct::{Condition, Operand, Order, Relation, Writer};
use super::super::element::{Field, Label, OPERAND_BITS, QueueId};
use super::super::mov::Pointer;
use super::super::place::{Base, Place, Span, Word};
use super::super::program::{Kind, Program, Start};
use super::super::request::{Count, INLINE_MAX, Request};
use super::super::verb::{Class, Verb};
use super::diagnostic::Diagnostic;
use super::source::{Shown, Source};
use super::syntax::{
    At, ConditionText, CountText, ElementText, Item, MovSide, Name, PlaceText, PointerText,
    QueueKind, QueueText, Statement, Value,
};
use remora_nic::queue::MAX_SGE;

/// The most requests of a program. `repeat` writes many.
const REQUESTS_MAX: usize = 1 << 14;
/// The most statements that are lowered, counted each time that `repeat` writes them.
const STATEMENTS_MAX: u32 = 1 << 16;
/// The most mistakes that are reported.
const MISTAKES_MAX: usize = 50;

type Lowered<T> = Result<T, Diagnostic>;

#[derive(Clone, Copy)]
enum Meaning {
    Data(Span),
    Request(Named),
    Queue(QueueId),
}

/// A request with a label.
#[derive(Clone, Copy)]
struct Named {
    label: Label,
    verb: Verb,
    queue: QueueId,
    /// No WAIT counts its completion.
    silent: bool,
}

#[derive(Default)]
struct Names(BTreeMap<String, Meaning>);

pub(super) fn lower(items: &[Item], wrong: &mut Vec<Diagnostic>) -> Source {
    let mut source = Source { program: Program::new(), requests: Vec::new(), shown: Vec::new() };
    let mut names = Names::default();
    for item in items {
        declare(&mut source.program, &mut names, item, wrong);
    }
    for item in items {
        define(&mut source, &names, item, wrong);
        if wrong.len() >= MISTAKES_MAX {
            break;
        }
        if let Item::Program(_, _, at) | Item::Queue(QueueText { name: Name { at, .. }, .. }) = item
            && source.program.len() > REQUESTS_MAX
        {
            report(wrong, too_many(at));
            break;
        }
    }
    source
}

/// Reports a mistake once.
fn report(wrong: &mut Vec<Diagnostic>, diagnostic: Diagnostic) {
    if !wrong.contains(&diagnostic) {
        wrong.push(diagnostic);
    }
}

fn too_many(at: &At) -> Diagnostic {
    let message = format!("the program has more than {REQUESTS_MAX} requests");
    let help = "use `loop` or `while` instead of `repeat`, and compare shorter pieces";
    Diagnostic::new(at.clone(), message, help)
}

/// Gives the name of an item its meaning, and its place in the program.
fn declare(program: &mut Program, names: &mut Names, item: &Item, wrong: &mut Vec<Diagnostic>) {
    let mut declared = Vec::new();
    match item {
        Item::Data(name, values) => {
            let span = program.bytes(&name.text, &bytes_of(values));
            declared.push((name, Meaning::Data(span)));
        }
        Item::Queue(queue) => {
            let id = add_queue(program, queue);
            declared.push((&queue.name, Meaning::Queue(id)));
            for element in &queue.elements {
                let verb = Verb::named(&element.verb.text).unwrap_or(Verb::Noop);
                let silent = element.silent || verb.class() == Class::Order;
                if let Some(name) = &element.label {
                    let label = program.label(&name.text);
                    let named = Named { label, verb, queue: id, silent };
                    declared.push((name, Meaning::Request(named)));
                }
            }
        }
        Item::Program(..) | Item::Request(_) | Item::Show(_) => {}
    }
    for (name, meaning) in declared {
        if names.0.insert(name.text.clone(), meaning).is_some() {
            let message = format!("`{}` is the name of something else already", name.text);
            wrong.push(Diagnostic::new(name.at.clone(), message, "give it another name"));
        }
    }
}

fn add_queue(program: &mut Program, queue: &QueueText) -> QueueId {
    let kind = match queue.kind {
        QueueKind::Loop => Kind::Loop,
        QueueKind::Reply => Kind::Reply,
        QueueKind::Receive => Kind::Receive,
    };
    let start = match queue.start {
        None => Start::Running,
        Some(0) => Start::Asleep,
        Some(elements) => Start::Elements(elements.min(u64::from(u32::MAX)) as u32),
    };
    program.queue(&queue.name.text, kind, queue.managed, start)
}

fn define(source: &mut Source, names: &Names, item: &Item, wrong: &mut Vec<Diagnostic>) {
    match item {
        Item::Data(name, values) => {
            if let Some(Meaning::Data(span)) = names.0.get(&name.text) {
                fill(&mut source.program, names, *span, values, wrong);
            }
        }
        Item::Request(values) => {
            let name = format!("request {}", source.requests.len() + 1);
            let span = source.program.bytes(&name, &bytes_of(values));
            fill(&mut source.program, names, span, values, wrong);
            source.requests.push(span);
        }
        Item::Show(place) => match names.span(place) {
            Ok(span) => {
                let name = shown_name(place);
                source.shown.push(Shown { name, span });
            }
            Err(diagnostic) => wrong.push(diagnostic),
        },
        Item::Queue(queue) => {
            let Some(Meaning::Queue(id)) = names.0.get(&queue.name.text).copied() else { return };
            for element in &queue.elements {
                if wrong.len() >= MISTAKES_MAX {
                    return;
                }
                if let Err(diagnostic) = put(&mut source.program, names, queue, id, element) {
                    wrong.push(diagnostic);
                }
            }
        }
        Item::Program(doorbell, block, at) => {
            let order = if *doorbell { Order::Doorbell } else { Order::Fetch };
            let main = source.program.managed("main", Start::Running);
            let mut writer = Writer::new(&mut source.program, main, order);
            let mut lowering =
                Lowering { names, wrong, program_at: at.clone(), left: STATEMENTS_MAX };
            lowering.block(&mut writer, block);
            writer.finish();
        }
    }
}

fn shown_name(place: &PlaceText) -> String {
    let field = place.field.as_ref().map_or(String::new(), |field| format!(".{}", field.text));
    let offset = if place.offset > 0 { format!("+{}", place.offset) } else { String::new() };
    format!("{}{field}{offset}", place.name.text)
}

/// The bytes of data. Words whose values are found later are zero.
fn bytes_of(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        match value {
            Value::Number(number, _) => bytes.extend_from_slice(&number.to_le_bytes()),
            Value::Text(text, _) => bytes.extend_from_slice(text.as_bytes()),
            Value::Zero(len, _) => bytes.resize(bytes.len() + *len as usize, 0),
            Value::Address(_) | Value::Head(..) | Value::Place(_) => bytes.extend([0; 8]),
        }
    }
    bytes
}

/// Sets the words of data whose values need names.
fn fill(
    program: &mut Program,
    names: &Names,
    span: Span,
    values: &[Value],
    wrong: &mut Vec<Diagnostic>,
) {
    let mut offset = 0;
    for value in values {
        match value {
            Value::Text(text, _) => offset += text.len() as u64,
            Value::Zero(len, _) => offset += len,
            word => {
                match names.word(word) {
                    Ok(word) => program.set_word(span.at.plus(offset), word),
                    Err(diagnostic) => wrong.push(diagnostic),
                }
                offset += 8;
            }
        }
    }
}

impl Names {
    fn get(&self, name: &Name) -> Lowered<Meaning> {
        self.0.get(&name.text).copied().ok_or_else(|| {
            let message = format!("nothing is called `{}`", name.text);
            let known = self.0.keys().min_by_key(|known| distance(known, &name.text));
            let help = match known {
                Some(known) if distance(known, &name.text) <= 2 => format!("is it `{known}`?"),
                _ => "names come from `data`, `queue` and labels before elements".to_owned(),
            };
            Diagnostic::new(name.at.clone(), message, help)
        })
    }

    fn queue(&self, name: &Name) -> Lowered<QueueId> {
        match self.get(name)? {
            Meaning::Queue(queue) => Ok(queue),
            _ => {
                let message = format!("`{}` is not a queue", name.text);
                Err(Diagnostic::new(name.at.clone(), message, "name a queue of this file"))
            }
        }
    }

    /// The piece of memory that a place means.
    fn span(&self, place: &PlaceText) -> Lowered<Span> {
        let whole = match (self.get(&place.name)?, &place.field) {
            (Meaning::Data(span), None) => span,
            (Meaning::Request(Named { label, verb, .. }), Some(field)) => {
                let found = Field::named(&field.text, verb).ok_or_else(|| {
                    let message = format!("an element has no field `{}`", field.text);
                    let help = "fields are head, opcode, id, flags, src, dst, key, operand, new, \
                                compare, old, count, len, wr_id and element";
                    Diagnostic::new(field.at.clone(), message, help)
                })?;
                label.field(found)
            }
            (Meaning::Request(..), None) => {
                let message = format!("`{}` is a request: which field?", place.name.text);
                let help = format!("as `{}.opcode`", place.name.text);
                return Err(Diagnostic::new(place.at.clone(), message, help));
            }
            (Meaning::Data(_), Some(field)) => {
                let help = "only requests have fields; an offset is written `x + 8`";
                return Err(Diagnostic::new(field.at.clone(), "data has no fields", help));
            }
            (Meaning::Queue(_), _) => {
                let help = "name one of its requests, and a field";
                return Err(Diagnostic::new(place.at.clone(), "a queue is not memory", help));
            }
        };
        let left = u64::from(whole.len).checked_sub(place.offset);
        let len = place.len.or(left).filter(|len| left.is_some_and(|left| *len <= left));
        let Some(len) = len else {
            let message = format!("`{}` has only {} bytes", shown_whole(place), whole.len);
            let help = "lower the offset or the length";
            return Err(Diagnostic::new(place.at.clone(), message, help));
        };
        Ok(whole.part(place.offset, len as u32))
    }

    /// A value of 8 bytes that is known when the program is linked.
    fn word(&self, value: &Value) -> Lowered<Word> {
        match value {
            Value::Number(number, _) => Ok(Word::Number(*number)),
            Value::Address(place) => {
                let start = PlaceText { len: Some(0), ..place.clone() };
                Ok(Word::Address(self.span(&start)?.at))
            }
            Value::Head(verb, id) => Ok(Word::Head(verb_of(verb)?, *id)),
            Value::Place(place) => {
                let message = "this value is in memory and not known before the program runs";
                let help = "write `&x` for its address, or a number";
                Err(Diagnostic::new(place.at.clone(), message, help))
            }
            Value::Text(_, at) | Value::Zero(_, at) => {
                let message = "expected a word of 8 bytes";
                let help = "put the bytes into `data`, and use the name of that data";
                Err(Diagnostic::new(at.clone(), message, help))
            }
        }
    }

    fn spans(&self, values: &[Value]) -> Lowered<Vec<Span>> {
        values.iter().map(|value| self.span(place_of(value)?)).collect()
    }

    /// A place with its given length, or else its first 8 bytes.
    fn register(&self, place: &PlaceText) -> Lowered<Span> {
        let span = self.span(place)?;
        Ok(if place.len.is_none() { span.part(0, span.len.min(8)) } else { span })
    }

    /// The word that an atomic works on, or that holds an address.
    fn whole_word(&self, place: &PlaceText) -> Lowered<Place> {
        let Span { at, len } = self.register(place)?;
        if len == 8 {
            return Ok(at);
        }
        let message = format!("this needs a word of 8 bytes, and the place has {len}");
        let help = "name a place of 8 bytes, as `x:8` or `r2.head`";
        Err(Diagnostic::new(place.at.clone(), message, help))
    }

    /// A value that an element holds, and the place that it is written to: of the given length, or
    /// else a word, or as long as its field or data if that is shorter.
    fn immediate(&self, value: &Value, to: &PlaceText) -> Lowered<(Word, Span)> {
        let (word, to_span) = (self.word(value)?, self.register(to)?);
        let len = to_span.len;
        if len > INLINE_MAX {
            let message = format!("an immediate has at most {INLINE_MAX} bytes");
            let help = "put the value into `data`, and use the name of that data";
            return Err(Diagnostic::new(to.at.clone(), message, help));
        }
        let fits = match word {
            _ if len >= 8 => true,
            Word::Address(_) => false,
            number => number.resolve(|_| 0) >> (8 * len) == 0,
        };
        if !fits {
            let message = format!("this value does not fit into {len} bytes");
            let help = "give a smaller value, or a place of up to 8 bytes";
            return Err(Diagnostic::new(at_of(value), message, help));
        }
        Ok((word, to_span))
    }
}

fn place_of(value: &Value) -> Lowered<&PlaceText> {
    match value {
        Value::Place(place) => Ok(place),
        other => {
            let help = "put the value into `data`, and use the name of that data";
            Err(Diagnostic::new(at_of(other), "expected memory, found a value", help))
        }
    }
}

fn shown_whole(place: &PlaceText) -> String {
    shown_name(&PlaceText { offset: 0, ..place.clone() })
}

fn at_of(value: &Value) -> At {
    match value {
        Value::Number(_, at) | Value::Text(_, at) | Value::Zero(_, at) => at.clone(),
        Value::Address(place) | Value::Place(place) => place.at.clone(),
        Value::Head(verb, _) => verb.at.clone(),
    }
}

fn verb_of(name: &Name) -> Lowered<Verb> {
    Verb::named(&name.text).ok_or_else(|| {
        let message = format!("`{}` is not a verb", name.text);
        let help = "verbs are noop, read, write, send, recv, cas, fetch_add, add, max, min, and, \
                    or, xor, wait, enable and enable_recv";
        Diagnostic::new(name.at.clone(), message, help)
    })
}

/// The number of letters to change, add or remove that makes one name the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Puts an element into its queue.
fn put(
    program: &mut Program,
    names: &Names,
    queue: &QueueText,
    id: QueueId,
    element: &ElementText,
) -> Lowered<()> {
    let request = request(program, names, queue, element)?;
    let most = request.local.len();
    if most > MAX_SGE {
        let message = format!("this element has {most} pieces of memory");
        let help = "an element has at most 16: split it";
        return Err(Diagnostic::new(element.verb.at.clone(), message, help));
    }
    let label = match &element.label {
        Some(name) => match names.get(name)? {
            Meaning::Request(named) => named.label,
            _ => return Ok(()),
        },
        None => program.label(""),
    };
    let signaled = request.signaled && !element.silent;
    program.put(id, label, Request { off: element.off, id: element.id, signaled, ..request });
    Ok(())
}

fn request(
    program: &Program,
    names: &Names,
    queue: &QueueText,
    element: &ElementText,
) -> Lowered<Request> {
    let receives = queue.kind == QueueKind::Receive;
    let at = element.verb.at.clone();
    let fail = |message: &str, help: &str| Err(Diagnostic::new(at.clone(), message, help));
    let into: Vec<Span> = element.to.iter().map(|to| names.span(to)).collect::<Lowered<_>>()?;
    if receives != (element.verb.text == "recv") {
        return if receives {
            fail("a receive queue holds only `recv`", "`recv -> x, r2.id`")
        } else {
            fail("only a receive queue holds `recv`", "`queue requests receive managed { … }`")
        };
    }
    if receives {
        return Ok(Request::receive(&into));
    }
    let verb = verb_of(&element.verb)?;
    if let (Some(name), Some(count)) = (&element.queue, &element.count) {
        return order(program, names, verb, (name, count));
    }
    let from = element.from.as_slice();
    match (verb, from, into.as_slice()) {
        (Verb::Noop, [], []) => Ok(Request::noop()),
        (Verb::Send, _, []) => Ok(Request::send(&names.spans(from)?)),
        (Verb::Write, [Value::Place(_), ..], [to]) => {
            Ok(Request::write(&names.spans(from)?, to.at))
        }
        (Verb::Write, [value], [_]) => {
            let (word, to) = names.immediate(value, &element.to[0])?;
            Ok(Request::write_inline(word, to.len, to.at))
        }
        (Verb::Read, [_], [_, ..]) => Ok(Request::read(names.spans(from)?[0].at, &into)),
        (Verb::CompareSwap, [place, expect], []) => {
            let at = names.whole_word(place_of(place)?)?;
            match &element.becomes {
                Some(new) => Ok(Request::compare_swap(at, names.word(expect)?, names.word(new)?)),
                None => fail("the value to swap in is missing", "`cas r2.head, noop:5 => write:5`"),
            }
        }
        (Verb::CompareSwap | Verb::Send | Verb::Write | Verb::Read, ..) => {
            let help =
                "`write x -> y`, `read x -> y, z`, `cas r2.head, noop:5 => write:5`, `send x`";
            fail("these operands do not fit this verb", help)
        }
        (Verb::WriteImm, ..) => fail("the text form has no immediate data", "use `write`"),
        (_, [place, operand], [] | [_]) => {
            let at = names.whole_word(place_of(place)?)?;
            Ok(Request { local: into, ..Request::calc(verb, at, names.word(operand)?) })
        }
        _ => fail("these operands do not fit this verb", "`add x, 5` or `add x, 5 -> before`"),
    }
}

/// A WAIT or ENABLE.
fn order(
    program: &Program,
    names: &Names,
    verb: Verb,
    (name, count): (&Name, &CountText),
) -> Lowered<Request> {
    let to = names.queue(name)?;
    let count = match count {
        CountText::Number(number) => Count::Number(*number),
        CountText::Gate => Count::Gate,
        CountText::Through(label) => through(program, names, (to, verb), label)?,
    };
    Ok(match verb {
        Verb::Wait => Request::wait(to, count),
        Verb::Enable => Request::enable(to, count),
        _ => Request::enable_recv(to, count),
    })
}

/// The count up to a request, for a `verb` of `queue`.
fn through(
    program: &Program,
    names: &Names,
    (queue, verb): (QueueId, Verb),
    name: &Name,
) -> Lowered<Count> {
    let fail = |message: String, help: &str| Err(Diagnostic::new(name.at.clone(), message, help));
    let Meaning::Request(named) = names.get(name)? else {
        return fail("`through` needs a request".to_owned(), "`wait q through r1`");
    };
    let name_of = |id: QueueId| &program.queues()[id.index()].name;
    if named.queue != queue {
        let (its, wanted) = (name_of(named.queue), name_of(queue));
        let message = format!("`{}` stands in `{its}`, not in `{wanted}`", name.text);
        return fail(message, "name the queue that the request stands in, or another request");
    }
    if named.silent && verb == Verb::Wait {
        let help = "`silent` elements, WAIT and ENABLE are not counted: name an element that is";
        return fail(format!("`{}` counts in no WAIT", name.text), help);
    }
    Ok(Count::Through(named.label))
}

struct Lowering<'a> {
    names: &'a Names,
    wrong: &'a mut Vec<Diagnostic>,
    program_at: At,
    /// Statements that may still be lowered.
    left: u32,
}

impl Lowering<'_> {
    fn block(&mut self, w: &mut Writer<'_>, block: &[Statement]) {
        // An empty block counts too, since writing it out many times takes time.
        self.left = self.left.saturating_sub(1);
        for statement in block {
            self.left = self.left.saturating_sub(1);
            if let Err(diagnostic) = self.room_for(0, w) {
                report(self.wrong, diagnostic);
                return;
            }
            if self.wrong.len() >= MISTAKES_MAX {
                return;
            }
            if let Err(diagnostic) = self.statement(w, statement) {
                report(self.wrong, diagnostic);
            }
        }
    }

    /// Refuses so many more requests if they make the program too large.
    fn room_for(&self, requests: usize, w: &Writer<'_>) -> Lowered<()> {
        let has_room = self.left > 0 && w.program.len() + requests <= REQUESTS_MAX;
        if has_room { Ok(()) } else { Err(too_many(&self.program_at)) }
    }

    fn statement(&mut self, w: &mut Writer<'_>, statement: &Statement) -> Lowered<()> {
        match statement {
            Statement::Mov(to, from, at) => self.mov(w, to, from, at),
            Statement::Calc(verb, place, value) => self.calc(w, verb, place, value),
            Statement::If(condition, then, otherwise) => {
                let condition = self.condition(w, condition)?;
                let this = core::cell::RefCell::new(self);
                w.if_else(
                    condition,
                    |w| this.borrow_mut().block(w, then),
                    |w| this.borrow_mut().block(w, otherwise),
                );
                Ok(())
            }
            Statement::While(condition, body, at) => {
                let condition = self.condition(w, condition)?;
                can_loop(w, at)?;
                w.while_(condition, |w| self.block(w, body));
                Ok(())
            }
            Statement::Loop(body, at) => {
                can_loop(w, at)?;
                w.loop_(|w| self.block(w, body));
                Ok(())
            }
            Statement::Repeat(times, body, at) => {
                let times = u32::try_from(*times).ok().filter(|&n| n as usize <= REQUESTS_MAX);
                let Some(times) = times else {
                    let help = "`repeat` writes its body out; use `while` or `loop`";
                    let message = "too many rounds for `repeat`";
                    return Err(Diagnostic::new(at.clone(), message, help));
                };
                w.repeat(times, |w, _| self.block(w, body));
                Ok(())
            }
            Statement::Break(_) if w.in_loop() => {
                w.break_();
                Ok(())
            }
            Statement::Break(at) => {
                let help = "`break` leaves `while`, `loop`, or a `repeat` that is in no other loop \
                            and in no `if`";
                Err(Diagnostic::new(at.clone(), "there is no loop to leave here", help))
            }
        }
    }

    fn condition(&self, w: &Writer<'_>, text: &ConditionText) -> Lowered<Condition> {
        let lens = [self.compared_len(&text.left)?, self.compared_len(&text.right)?];
        if lens.iter().all(|len| *len > 6) || lens.iter().any(|len| *len > 8) {
            return self.same_bytes(w, text);
        }
        let (left, right) = (self.operand(&text.left)?, self.operand(&text.right)?);
        Ok(Condition::Compare(left, text.relation, right))
    }

    /// The length that a value is to be compared in; 0 if that is left open, as for a word without
    /// a length, of which 48 bits are compared.
    fn compared_len(&self, value: &Value) -> Lowered<u32> {
        let Value::Place(place) = value else { return Ok(0) };
        let len = self.names.span(place)?.len;
        Ok(if place.len.is_some() || len > 8 { len } else { 0 })
    }

    /// A comparison of pieces that are longer than an operand.
    fn same_bytes(&self, w: &Writer<'_>, text: &ConditionText) -> Lowered<Condition> {
        if let (Value::Place(left), Value::Place(right)) = (&text.left, &text.right) {
            let (left, right) = (self.names.span(left)?, self.names.span(right)?);
            if left.len == right.len && text.relation == Relation::Equal {
                let condition = Condition::SameBytes(left, right);
                self.room_for(condition.least_requests(), w)?;
                return Ok(condition);
            }
        }
        let help = "longer pieces need `==` and equal lengths: `x:16 == y:16`; `x:6` is the first \
                    48 bits of x";
        let message = "these pieces of memory cannot be compared";
        Err(Diagnostic::new(text.at.clone(), message, help))
    }

    fn operand(&self, value: &Value) -> Lowered<Operand> {
        match value {
            Value::Number(number, _) if number >> OPERAND_BITS == 0 => Ok(Operand::Number(*number)),
            Value::Place(place) => {
                let span = self.names.span(place)?;
                if span.len < 6 {
                    let help = "a comparison takes at least 6 bytes";
                    return Err(Diagnostic::new(place.at.clone(), "this place is too short", help));
                }
                Ok(Operand::Cell(span.at))
            }
            other => {
                let message = "a comparison takes 48 bits: a number below 2^48, or a place";
                let help = "compare longer values with `x:16 == y:16`";
                Err(Diagnostic::new(at_of(other), message, help))
            }
        }
    }

    fn calc(
        &self,
        w: &mut Writer<'_>,
        verb: &Name,
        place: &PlaceText,
        value: &Value,
    ) -> Lowered<()> {
        let (verb, to) = (verb_of(verb)?, self.names.whole_word(place)?);
        let Value::Place(from) = value else {
            w.push(Request::calc(verb, to, self.names.word(value)?));
            return Ok(());
        };
        let from_span = self.names.register(from)?;
        if from_span.len > 8 {
            let help = "name its first word, as `x:8`";
            let message = "an operand has at most 8 bytes";
            return Err(Diagnostic::new(from.at.clone(), message, help));
        }
        let label = w.program().label("");
        w.inject(from_span, label.field(Field::Operand).at);
        w.barrier();
        w.put(label, Request::calc(verb, to, Word::Number(0)));
        Ok(())
    }

    fn mov(&self, w: &mut Writer<'_>, to: &MovSide, from: &MovSide, at: &At) -> Lowered<()> {
        match (to, from) {
            (MovSide::Value(Value::Place(to)), MovSide::Value(Value::Place(from))) => {
                let (to, from) = (self.names.register(to)?, self.names.register(from)?);
                w.mov(to.at, from.at.span(from.len.min(to.len)));
            }
            (MovSide::Value(Value::Place(to)), MovSide::Value(value)) => {
                let (value, to) = self.names.immediate(value, to)?;
                w.mov_constant(to, value);
            }
            (MovSide::Value(Value::Place(to)), MovSide::Pointer(from)) => {
                let (to, from) = (self.names.register(to)?, self.pointer(from)?);
                w.load(to, from);
            }
            (MovSide::Pointer(to), MovSide::Value(Value::Place(from))) => {
                let (to, from) = (self.pointer(to)?, self.names.register(from)?);
                w.store(to, from);
            }
            _ => {
                let help = "`mov x, 5`, `mov x, y`, `mov x, [p]`, `mov x, [p + i]`, `mov [p], x`";
                let message = "`mov` cannot have these operands";
                return Err(Diagnostic::new(at.clone(), message, help));
            }
        }
        Ok(())
    }

    fn pointer(&self, pointer: &PointerText) -> Lowered<Pointer> {
        let index = pointer.index.as_ref().map(|index| self.names.whole_word(index)).transpose()?;
        let memory = Place { base: Base::Data, offset: 0 };
        Ok(Pointer { register: self.names.whole_word(&pointer.register)?, index, memory })
    }
}

fn can_loop(w: &Writer<'_>, at: &At) -> Lowered<()> {
    if w.can_loop() {
        return Ok(());
    }
    let message = "this loop is inside another loop or an `if`";
    let help = "use `repeat` there, or write the loop as a queue";
    Err(Diagnostic::new(at.clone(), message, help))
}
