//! Programs and their steps in words, for listings and traces.

use super::card::{Change, End, Failure, Step};
use super::element::{Field, Label, QueueId};
use super::link::Layout;
use super::place::{Base, Place, Span, Word};
use super::program::Program;
use super::request::{Count, Request};
use super::verb::Verb;

/// The longest field that is shown as words, in bytes.
const WORDS_SHOWN: usize = 64;

/// Fields in the order in which they are tried as a name for an address.
const FIELDS: [(Field, &str); 11] = [
    (Field::Head, "head"),
    (Field::Opcode, "opcode"),
    (Field::Id, "id"),
    (Field::Flags, "flags"),
    (Field::Key, "key"),
    (Field::Remote, "remote"),
    (Field::Operand, "operand"),
    (Field::WrId, "wr_id"),
    (Field::Addr(0), "addr"),
    (Field::Len(0), "len"),
    (Field::Compare, "compare"),
];

impl Program {
    /// The title of a request: its label, or else its queue and its index there.
    pub fn title(&self, label: Label) -> String {
        let name = self.name(label);
        if !name.is_empty() {
            return name.to_owned();
        }
        match self.position(label) {
            Some((queue, index)) => format!("{}[{index}]", self.queues()[queue.0].name),
            None => "?".to_owned(),
        }
    }

    /// A failure in words: the request's title, or else its queue's name, and the status.
    pub fn failure(&self, failure: &Failure) -> String {
        let queue = || self.queues()[failure.queue.0].name.clone();
        let title = failure.label.map_or_else(queue, |label| self.title(label));
        format!("{title}: {}", failure.status)
    }

    /// The name of a place.
    pub fn place_name(&self, place: Place) -> String {
        let Place { base, offset } = place;
        match base {
            Base::Request(label) => {
                let request = self.request(label);
                format!("{}.{}", self.title(label), field_name(request, offset))
            }
            Base::Import(import) => plus(&self.imports()[import], offset),
            Base::Data => {
                let items = self.items().iter().rev();
                let item = items.clone().find(|item| item.span.at.offset <= offset);
                item.map_or_else(
                    || plus("data", offset),
                    |item| plus(&item.name, offset - item.span.at.offset),
                )
            }
        }
    }

    /// The place of an address in a linked program.
    pub fn locate(&self, layout: &Layout, addr: u64) -> Option<Place> {
        for (i, queue) in self.queues().iter().enumerate() {
            let (ring, stride) = (layout.queues[i].ring.addr, u64::from(self.stride(QueueId(i))));
            let Some(offset) = addr.checked_sub(ring) else { continue };
            if let Some(&label) = queue.labels().get((offset / stride) as usize) {
                return Some(Place { base: Base::Request(label), offset: offset % stride });
            }
        }
        let within = |at: u64, len: u64| addr.checked_sub(at).filter(|offset| *offset < len);
        if let Some(offset) = within(layout.data.addr, self.data_len() as u64) {
            return Some(Place { base: Base::Data, offset });
        }
        // The lengths of imports are not known here: take the nearest import that starts at or
        // below.
        let below = layout.imports.iter().enumerate().filter(|(_, import)| import.addr <= addr);
        let (import, at) = below.max_by_key(|(_, import)| import.addr)?;
        Some(Place { base: Base::Import(import), offset: addr - at.addr })
    }

    /// The name of an address, or its number if it has no name.
    pub fn address_name(&self, layout: &Layout, addr: u64) -> String {
        let place = self.locate(layout, addr);
        place.map_or_else(|| "elsewhere".to_owned(), |place| self.place_name(place))
    }

    /// The operands of a request, written as in the text form.
    pub fn operands(&self, label: Label) -> String {
        let request = self.request(label);
        let spans = |spans: &[Span]| {
            let names: Vec<String> = spans.iter().map(|span| self.place_name(span.at)).collect();
            names.join(", ")
        };
        let word = |word: Word| match word {
            Word::Number(number) => number_name(number),
            Word::Address(place) => format!("&{}", self.place_name(place)),
            Word::Head(verb, 0) => verb.name().to_owned(),
            Word::Head(verb, id) => format!("{}:{id}", verb.name()),
        };
        let remote = request.remote.map(|place| self.place_name(place)).unwrap_or_default();
        let local = spans(&request.local);
        match (request.verb, request.constant, request.order) {
            (_, _, Some((queue, count))) => {
                let name = &self.queues()[queue.0].name;
                match count {
                    Count::Number(number) => format!("{name} {number}"),
                    Count::Through(label) => format!("{name} through {}", self.title(label)),
                    Count::Gate => format!("{name} gate"),
                }
            }
            (_, Some((constant, _)), _) => format!("{} → {remote}", word(constant)),
            (Verb::Write | Verb::WriteImm, ..) => format!("{local} → {remote}"),
            (Verb::Read, ..) => format!("{remote} → {local}"),
            (Verb::CompareSwap, ..) => {
                format!("{remote}: {} ⇒ {}", word(request.compare), word(request.operand))
            }
            (Verb::Noop | Verb::Send, ..) => local,
            _ => format!("{remote}, {}", word(request.operand)),
        }
    }

    /// A step in words: the element as it was fetched.
    pub fn step_title(&self, layout: &Layout, step: &Step) -> String {
        let element = &step.element;
        let word = |field: Field| {
            let at = field.span().0 as usize;
            element[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
        };
        let kind = self.queues()[step.queue.0].kind;
        if kind == super::program::Kind::Receive {
            return "recv".to_owned();
        }
        let verb = Verb::parse(u16::from_le_bytes([element[0], element[1]]));
        let Some(verb) = verb else { return format!("op-code {}", word(Field::Head) & 0xFFFF) };
        let at = |field: Field| self.address_name(layout, word(field));
        let key = word(Field::Flags) >> 32;
        let operands = match verb {
            Verb::Noop | Verb::Send => String::new(),
            Verb::Wait => format!(
                "{} {}",
                self.queue_of(layout, |q| u64::from(q.cq) == key),
                word(Field::Remote)
            ),
            Verb::Enable | Verb::EnableRecv => {
                let receives = verb == Verb::EnableRecv;
                let of = self.queues().iter().zip(&layout.queues);
                let is_it = |kind: super::program::Kind| {
                    (kind == super::program::Kind::Receive) == receives
                };
                let mut of = of.filter(|(queue, at)| u64::from(at.qpn) == key && is_it(queue.kind));
                let name = of.next().map_or("?", |(queue, _)| queue.name.as_str());
                format!("{name} {}", word(Field::Remote))
            }
            Verb::Write if element[8] & 8 != 0 => {
                format!("{} → {}", number_name(word(Field::Addr(0))), at(Field::Remote))
            }
            Verb::Write | Verb::WriteImm => {
                format!("{} → {}", at(Field::Addr(0)), at(Field::Remote))
            }
            Verb::Read => {
                let more = if element[11] > 1 { ", …" } else { "" };
                format!("{} → {}{more}", at(Field::Remote), at(Field::Addr(0)))
            }
            Verb::CompareSwap => {
                let head = |word: u64| match Verb::parse(word as u16) {
                    Some(verb) => format!("{}:{}", verb.name(), number_name(word >> 16)),
                    None => number_name(word),
                };
                let (old, new) = (word(Field::Compare), word(Field::Operand));
                format!("{}: {} ⇒ {}", at(Field::Remote), head(old), head(new))
            }
            _ => {
                let (to, operand) = (at(Field::Remote), word(Field::Operand));
                let in_head = to.ends_with(".head");
                let operand =
                    if in_head { head_name(&operand.to_le_bytes()) } else { number_name(operand) };
                format!("{to}, {operand}")
            }
        };
        format!("{} {operands}", verb.name()).trim_end().to_owned()
    }

    fn queue_of(&self, layout: &Layout, is_it: impl Fn(&super::link::QueueAt) -> bool) -> &str {
        let found = layout.queues.iter().position(is_it);
        found.map_or("?", |i| &self.queues()[i].name)
    }

    /// The label of the request that a step ran.
    pub fn step_label(&self, step: &Step) -> Option<Label> {
        let queue = &self.queues()[step.queue.0];
        queue.labels().get((step.index & (queue.depth() - 1)) as usize).copied()
    }

    /// What a step changed, one line for each piece of memory.
    pub fn effects(&self, layout: &Layout, step: &Step) -> Vec<String> {
        match step.end {
            End::Blocked => vec!["waits".to_owned()],
            End::Failed(status) => vec![format!("{status}")],
            End::Done => step.changes.iter().map(|change| self.change(layout, change)).collect(),
        }
    }

    fn change(&self, layout: &Layout, change: &Change) -> String {
        let name = self.address_name(layout, change.addr);
        let in_head = name.ends_with(".head") || name.ends_with(".opcode");
        let (before, after) = if in_head && change.after.len() <= 8 {
            (head_name(&change.before), head_name(&change.after))
        } else {
            (self.bytes_name(layout, &change.before), self.bytes_name(layout, &change.after))
        };
        if change.before == change.after {
            format!("{name} stays {after}")
        } else {
            format!("{name}: {before} → {after}")
        }
    }

    /// Bytes as a number, the name of an address, text, or hexadecimal digits.
    pub fn bytes_name(&self, layout: &Layout, bytes: &[u8]) -> String {
        if let (1..=8, mut word) = (bytes.len(), [0; 8]) {
            word[..bytes.len()].copy_from_slice(bytes);
            let number = u64::from_le_bytes(word);
            let known = bytes.len() == 8 && self.is_address(layout, number);
            let name = || format!("&{}", self.address_name(layout, number));
            return if known { name() } else { number_name(number) };
        }
        let is_text = bytes.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        if is_text && !bytes.is_empty() {
            return format!("{:?}", String::from_utf8_lossy(bytes));
        }
        if bytes.len() <= WORDS_SHOWN && bytes.len().is_multiple_of(8) && !bytes.is_empty() {
            let words = bytes.chunks_exact(8).map(|word| self.bytes_name(layout, word));
            return words.collect::<Vec<_>>().join(", ");
        }
        let shown: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let more = if bytes.len() > 16 { "…" } else { "" };
        format!("{}{more}", shown.join(" "))
    }

    fn is_address(&self, layout: &Layout, number: u64) -> bool {
        let place = self.locate(layout, number);
        place.is_some_and(|place| !matches!(place.base, Base::Import(_)))
    }
}

fn head_name(bytes: &[u8]) -> String {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    let verb = Verb::parse(word as u16).map_or("?", Verb::name);
    if word >> 16 == 0 { verb.to_owned() } else { format!("{verb}:{}", number_name(word >> 16)) }
}

fn number_name(number: u64) -> String {
    if number < 1 << 40 {
        return number.to_string();
    }
    // Small negative numbers are steps backwards.
    let backwards = number.wrapping_neg();
    if backwards < 1 << 16 { format!("-{backwards}") } else { format!("{number:#x}") }
}

fn plus(name: &str, offset: u64) -> String {
    if offset == 0 { name.to_owned() } else { format!("{name}+{offset}") }
}

/// The name of the field at `offset` in a request's slot, in the words of its verb.
fn field_name(request: &Request, offset: u64) -> String {
    match (offset, request.verb) {
        (16, Verb::Wait | Verb::Enable | Verb::EnableRecv) => return "count".to_owned(),
        (16, Verb::Read) | (40, Verb::Write | Verb::Send) if request.constant.is_none() => {
            return "src".to_owned();
        }
        (16, Verb::Write) => return "dst".to_owned(),
        (40, Verb::Write) => return "data".to_owned(),
        (58, Verb::CompareSwap) => return "old".to_owned(),
        (26, Verb::Max | Verb::Min) => return "operand+2".to_owned(),
        _ => {}
    }
    let field = FIELDS.iter().find(|(field, _)| field.span().0 == offset);
    field.map_or_else(|| offset.to_string(), |(_, name)| (*name).to_owned())
}
