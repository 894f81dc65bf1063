package golden;

import java.io.Serializable;

/** A version of a job, whose classes are in a jar of their own. */
public interface Version extends Serializable {
    /** Add its operators. */
    void build(Evolved job);
}
