//! What it costs to compile a module, as an estimate.
//!
//! A compiler takes longer than in proportion to a function's length: where control flow branches
//! or meets, it looks at the values that are alive there, for each loop around it once more. What
//! may trap, such as a division or a load, is checked before, and each check is a branch too: since
//! there are no signals (`engine`), the code tests for a zero or a bound, and leaves by a call. A
//! module of some kilobytes can be made to take minutes. What compilers emit is far from that.
//!
//! A unit is about a microsecond of an ordinary core, with a compiler that is optimised a little.
//! The estimate rather errs upwards, and is the same on every machine.

use core::fmt;

use wasmparser::{BinaryReaderError, CompositeInnerType, Operator, SubType, TypeSectionReader};

use crate::bulk::calls_host;

/// What a function costs that counts an instruction.
pub(crate) const COUNTED: u64 = 2500;
/// What a function costs, whatever is in it.
const FUNCTION: u64 = 300;
/// What a type costs, and each of its parameters and results.
const TYPE: u64 = 50;
const TYPE_VALUE: u64 = 12;
/// What each value costs that the host, or a call through a table, may pass to a function or take
/// from it: there may be code for that beside each function.
const PASSED: u64 = 30;
/// So many locals cost one unit, whatever becomes of them.
const LOCALS: u64 = 8;
/// What it costs to take a value over a branch or call.
const MOVED: u64 = 7;

/// What the types of a module cost: each has code by which the host calls functions of it.
///
/// # Errors
/// The section is malformed.
pub(crate) fn types(section: TypeSectionReader<'_>) -> Result<u64, BinaryReaderError> {
    let mut cost = 0;
    for group in section {
        for of in group?.types() {
            cost += TYPE + TYPE_VALUE * passed(of);
        }
    }
    Ok(cost)
}

/// The parameters and results of a function's type.
pub(crate) fn passed(of: &SubType) -> u64 {
    match &of.composite_type.inner {
        CompositeInnerType::Func(of) => (of.params().len() + of.results().len()) as u64,
        _ => 0,
    }
}

/// What a function costs, instruction by instruction.
pub(crate) struct FunctionCost {
    index: u32,
    /// What its instructions cost for themselves.
    flat: u64,
    /// Ways that control flow may take.
    ways: u64,
    /// Checks before instructions that may trap.
    checks: u64,
    /// The most values that are alive anywhere: its locals and operands.
    alive: u64,
    locals: u32,
    /// For each open block, whether it is a loop.
    open: Vec<bool>,
    /// The loops that are open, and the most that ever were.
    loops: u64,
    deepest: u64,
}

impl FunctionCost {
    /// The cost of function `index`, which has so many locals, and so many of parameters and
    /// results together, without its instructions.
    pub(crate) fn new(index: u32, locals: u32, passed: u64) -> FunctionCost {
        FunctionCost {
            index,
            flat: FUNCTION + u64::from(locals) / LOCALS + PASSED * passed,
            ways: 0,
            checks: 0,
            alive: locals.into(),
            locals,
            open: Vec::new(),
            loops: 0,
            deepest: 0,
        }
    }

    /// Adds an instruction that takes and gives `moved` values, with `height` operands on the
    /// stack.
    pub(crate) fn add(&mut self, operator: &Operator<'_>, moved: u32, height: u32) {
        self.alive = self.alive.max(u64::from(self.locals) + u64::from(height));
        match operator {
            Operator::Block { .. } | Operator::If { .. } => self.open.push(false),
            Operator::Loop { .. } => {
                self.open.push(true);
                self.loops += 1;
                self.deepest = self.deepest.max(self.loops);
            }
            Operator::End => self.loops -= u64::from(self.open.pop().unwrap_or(false)),
            _ => {}
        }
        let ways = ways(operator);
        self.ways += ways;
        self.checks += checks(operator);
        let moves = ways.max(calls(operator).into());
        self.flat = self.flat.saturating_add(flat(operator) + moves * u64::from(moved) * MOVED);
    }

    /// What the instructions so far cost together.
    pub(crate) fn total(&self) -> u64 {
        // The constants are fitted to functions of one kind each: with many branches, many locals,
        // deep loops. Nothing meets behind a check that fails, so it counts as a quarter of a way.
        let quarters = u128::from(self.ways) * 4 + u128::from(self.checks);
        let branches = quarters.pow(2);
        let values = u128::from(self.alive) + 100;
        let loops = u128::from(self.deepest) + 32;
        let joined = branches.saturating_mul(values).saturating_mul(loops) >> 23;
        self.flat.saturating_add(u64::try_from(joined).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for FunctionCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FunctionCost { index, ways, checks, alive, deepest, .. } = self;
        let total = self.total();
        write!(
            f,
            "{total} of it in its function {index}, which has {ways} branches, {checks} \
             checks of instructions that may trap (such as divisions and loads), up to {alive} \
             values alive at each, and {deepest} loops within each other"
        )
    }
}

/// Whether an operator calls a function.
fn calls(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
    )
}

/// How many ways control flow may take at an operator; 0 if it just goes on.
fn ways(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::Block { .. }
        | Operator::Loop { .. }
        | Operator::If { .. }
        | Operator::Else
        | Operator::End
        | Operator::Br { .. }
        | Operator::BrIf { .. }
        | Operator::Return => 1,
        Operator::BrTable { targets } => u64::from(targets.len()) + 1,
        _ => 0,
    }
}

/// How many checks the compiler puts before an operator, each of which may end the guest.
fn checks(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::I32RemS
        | Operator::I32RemU
        | Operator::I32DivU
        | Operator::I64RemS
        | Operator::I64RemU
        | Operator::I64DivU
        | Operator::TableGet { .. }
        | Operator::TableSet { .. } => 1,
        // A division of the least number by minus one overflows; and a call through a table needs
        // an element, of the right type.
        Operator::I32DivS | Operator::I64DivS => 2,
        Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. } => 3,
        // No number, too small, too large.
        _ if truncates(operator) => 3,
        _ if accesses(operator) => 1,
        _ => 0,
    }
}

/// Does an operator make an integer of a float, and trap where there is none?
fn truncates(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::I32TruncF32S
            | Operator::I32TruncF32U
            | Operator::I32TruncF64S
            | Operator::I32TruncF64U
            | Operator::I64TruncF32S
            | Operator::I64TruncF32U
            | Operator::I64TruncF64S
            | Operator::I64TruncF64U
    )
}

/// Does an operator load or store?
fn accesses(operator: &Operator<'_>) -> bool {
    use Operator::*;
    matches!(
        operator,
        I32Load { .. }
            | I64Load { .. }
            | F32Load { .. }
            | F64Load { .. }
            | I32Load8S { .. }
            | I32Load8U { .. }
            | I32Load16S { .. }
            | I32Load16U { .. }
            | I64Load8S { .. }
            | I64Load8U { .. }
            | I64Load16S { .. }
            | I64Load16U { .. }
            | I64Load32S { .. }
            | I64Load32U { .. }
            | I32Store { .. }
            | I64Store { .. }
            | F32Store { .. }
            | F64Store { .. }
            | I32Store8 { .. }
            | I32Store16 { .. }
            | I64Store8 { .. }
            | I64Store16 { .. }
            | I64Store32 { .. }
            | V128Load { .. }
            | V128Load8x8S { .. }
            | V128Load8x8U { .. }
            | V128Load16x4S { .. }
            | V128Load16x4U { .. }
            | V128Load32x2S { .. }
            | V128Load32x2U { .. }
            | V128Load8Splat { .. }
            | V128Load16Splat { .. }
            | V128Load32Splat { .. }
            | V128Load64Splat { .. }
            | V128Load32Zero { .. }
            | V128Load64Zero { .. }
            | V128Store { .. }
            | V128Load8Lane { .. }
            | V128Load16Lane { .. }
            | V128Load32Lane { .. }
            | V128Load64Lane { .. }
            | V128Store8Lane { .. }
            | V128Store16Lane { .. }
            | V128Store32Lane { .. }
            | V128Store64Lane { .. }
    )
}

/// What an operator costs, wherever it stands.
fn flat(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::LocalGet { .. }
        | Operator::LocalSet { .. }
        | Operator::LocalTee { .. }
        | Operator::I32Const { .. }
        | Operator::I64Const { .. }
        | Operator::Drop
        | Operator::Nop => 1,
        Operator::CallIndirect { .. } | Operator::ReturnCallIndirect { .. } => 200,
        // Two calls.
        _ if calls_host(operator) => 100,
        // The number is compared with both bounds, as the widest float.
        _ if truncates(operator) => 250,
        _ if accesses(operator) => 40,
        // Most are a few instructions of the machine.
        _ => 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The estimate for a function that repeats an instruction, between operands from a local.
    fn cost(times: u64, repeated: &Operator<'_>) -> u64 {
        let mut cost = FunctionCost::new(1, 1, 0);
        for _ in 0..times {
            cost.add(&Operator::LocalGet { local_index: 0 }, 1, 2);
            cost.add(repeated, 3, 2);
        }
        cost.total()
    }

    /// What a compiler of release 36 has taken, in microseconds.
    #[test]
    fn the_estimate_is_not_below_what_was_measured() {
        for (times, operator, measured) in [
            (100_000, Operator::I32RemS, 4_200_000),
            (200_000, Operator::I32RemS, 14_700_000),
            (10_000, Operator::I32TruncF32S, 2_600_000),
            (160_000, Operator::I32TruncF32S, 28_000_000),
        ] {
            let estimate = cost(times, &operator);
            assert!(estimate >= measured, "{times} {operator:?}: {estimate}");
            assert!(estimate < 5 * measured, "{times} {operator:?}: {estimate}");
        }
    }

    /// Measured as above: many locals, and many parameters and results.
    #[test]
    fn functions_without_instructions_count_too() {
        for (locals, passed, measured) in [(50_000, 0, 4_700), (1_000, 2_000, 58_000)] {
            let estimate = FunctionCost::new(1, locals, passed).total();
            assert!(estimate >= measured && estimate < 2 * measured, "{estimate}, {measured}");
        }
    }

    #[test]
    fn what_cannot_trap_is_in_proportion() {
        let (some, many) = (cost(1_000, &Operator::I32Add), cost(100_000, &Operator::I32Add));
        assert!(many <= 100 * some, "{some}, {many}");
    }
}
