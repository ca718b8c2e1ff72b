package tide;

import static org.junit.Assert.assertEquals;

import org.junit.Test;

public class SumTest {
    @Test
    public void twoNumbersAreAdded() {
        assertEquals(42, Sum.of(40, 2));
    }
}
