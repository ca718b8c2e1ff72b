//! Share of the suite that runs on a provider.

/// Distance between the cases of a sample.
const SAMPLE_STEP: usize = 6;

/// Share of the suite that runs unless `TIDEBOX_SUITES` names the suite.
///
/// What happens inside a box is the work of one agent, the same on every runtime, so its cases run whole on one
/// provider, and a sample of them on the others shows that the agent is reached there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Every case.
    Whole,
    /// Cases that depend on the provider, and a sample of those that depend on the agent.
    Provider,
    /// A sample of all cases: for a variant of a provider that runs in another test.
    Variant,
}

/// Part of a box that a case depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// The agent in the box.
    Agent,
    /// The provider that makes the box.
    Provider,
}

impl Coverage {
    /// Returns `Whole` if the variable `TIDEBOX_SUITES` names the suite, else this.
    pub(crate) fn for_suite(self, suite: &str) -> Coverage {
        if fixtures::runs_whole(suite) { Coverage::Whole } else { self }
    }

    /// Returns true if the case at `index` of its layer runs.
    pub(crate) fn includes(self, layer: Layer, index: usize) -> bool {
        let is_sampled = match (self, layer) {
            (Coverage::Whole, _) | (Coverage::Provider, Layer::Provider) => false,
            (Coverage::Provider, Layer::Agent) | (Coverage::Variant, _) => true,
        };
        !is_sampled || index.is_multiple_of(SAMPLE_STEP)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_provider_runs_its_own_cases_whole_and_a_sample_of_the_agents() {
        let count = |coverage: Coverage, layer| (0..60).filter(|index| coverage.includes(layer, *index)).count();
        for (coverage, agent, provider) in
            [(Coverage::Whole, 60, 60), (Coverage::Provider, 10, 60), (Coverage::Variant, 10, 10)]
        {
            assert_eq!(count(coverage, Layer::Agent), agent, "{coverage:?}");
            assert_eq!(count(coverage, Layer::Provider), provider, "{coverage:?}");
        }
    }
}
